"""The program itself, and its pools."""

from datetime import timedelta
from functools import partial

from penstock import App, Retry, signed_in

app = App()
reader_query = app.query(access=signed_in)
reader_mutation = partial(app.mutation, access=signed_in)

PATIENT = Retry(max_attempts=8, initial_backoff=15, base=2)
BRISK = Retry(max_attempts=4, initial_backoff=0.5, base=2)

couriers = app.workpool("couriers", max_parallelism=4, default_retry=PATIENT)
printer = app.workpool("printer", max_parallelism=1, default_retry=PATIENT)  # expect: PEN018
archive = app.workpool("archive", max_parallelism=1, default_retry=BRISK)
scanner = app.workpool("scanner", max_parallelism=1)
binder = app.workpool(
    "binder", max_parallelism=2, default_retry=Retry.fixed(timedelta(minutes=5))
)
