from datetime import timedelta

from penstock import App, Retry

app = App()
rpc = app.internal_action
cmd = app.internal_mutation
ask = app.internal_query

_BACKOFF = timedelta(seconds=20)
stove = app.workpool("stove", max_parallelism=1, default_retry=Retry.fixed(_BACKOFF))  # expect: PEN018
oven = app.workpool("oven", max_parallelism=1)
bills = app.workpool("bills", max_parallelism=8, default_retry=Retry(4, 1, 3), retry_actions_by_default=True)
careful = oven.with_options(retry=Retry.series([1, 2, 90]))  # expect: PEN018
swift = oven.with_options(retry=Retry.series([0.1, 0.2]))
