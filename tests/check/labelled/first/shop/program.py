from penstock import App, Retry

app = App()
mails = app.workpool("mails", max_parallelism=5, default_retry=Retry(max_attempts=5, initial_backoff=0.25))
careful = mails.with_options(retry=True)
