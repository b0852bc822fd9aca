from penstock import App, Retry

app = App()
mails = app.workpool("mails", max_parallelism=5, default_retry=Retry(max_attempts=5, initial_backoff=0.25))
invoices = app.workpool(
    "invoices",
    max_parallelism=1,
    default_retry=Retry(max_attempts=12, initial_backoff=2, base=3),  # expect: PEN018
)
exports = app.workpool("exports", max_parallelism=1)
ledger = app.workpool("ledger", max_parallelism=1, default_retry=Retry(max_attempts=3, initial_backoff=0.5))
capped = app.workpool("capped", max_parallelism=1, default_retry=Retry(max_attempts=20, max_backoff=2))
careful = mails.with_options(retry=True)
