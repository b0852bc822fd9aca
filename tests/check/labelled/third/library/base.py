from datetime import timedelta

import penstock as ps
from penstock import App as Backend
from penstock import Retry

app = Backend(require_access=False)

QUICK = Retry(max_attempts=3, initial_backoff=0.2, base=2)
PATIENT = Retry(max_attempts=8, initial_backoff=5, base=3)
ROWS = 25

notices = app.workpool("notices", max_parallelism=8)
prints = app.workpool("prints", max_parallelism=1, default_retry=QUICK)
scans = app.workpool("scans", max_parallelism=1, default_retry=ps.Retry.fixed(2))
archive = app.workpool(
    "archive",
    max_parallelism=1,
    default_retry=ps.Retry.fixed(timedelta(minutes=1)),  # expect: PEN018
)
mailbox = app.workpool("mailbox", max_parallelism=1, default_retry=Retry.series([1, 5, 60]))  # expect: PEN018
labels = app.workpool("labels", max_parallelism=1, default_retry=Retry.series([1, 2, 3]))
couriers = app.workpool("couriers", max_parallelism=2, default_retry=PATIENT)
ONE = 1
binding = app.workpool("binding", max_parallelism=ONE, default_retry=PATIENT)  # expect: PEN018
urgent = notices.with_options(priority=5, retry=True)
