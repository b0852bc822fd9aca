from datetime import timedelta

import penstock as ps
from penstock import App as Backend
from penstock import Retry

app = Backend(require_access=False)

ROWS = 25

notices = app.workpool("notices", max_parallelism=8)
archive = app.workpool(
    "archive",
    max_parallelism=1,
    default_retry=ps.Retry.fixed(timedelta(minutes=1)),  # expect: PEN018
)
mailbox = app.workpool("mailbox", max_parallelism=1, default_retry=Retry.series([1, 5, 60]))  # expect: PEN018
urgent = notices.with_options(priority=5, retry=True)
