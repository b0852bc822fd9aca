"""The app, its pools and its settings."""

from __future__ import annotations

import os
from datetime import timedelta
from typing import Final

from penstock import App, Retry, Workpool

application: Final = App(require_access=True)
PAYMENT_URL: Final = os.getenv("PAYMENT_URL", "https://pay.example.com")
PATIENT: Final = Retry(max_attempts=8, initial_backoff=2, base=3)
EAGER: Final = Retry(max_attempts=3, initial_backoff=timedelta(milliseconds=100), base=2)

mailing: Workpool = application.workpool("mailing", max_parallelism=20, default_retry=PATIENT)
catalogue: Workpool = application.workpool("catalogue", max_parallelism=1, default_retry=PATIENT)  # expect: PEN018
hammer: Workpool = application.workpool("hammer", max_parallelism=1, default_retry=EAGER)
payments: Workpool = application.workpool("payments", max_parallelism=3)
patient_mailing = mailing.with_options(retry=True)
single = application.workpool(name="single", default_retry=Retry.cron("0 * * * *"), max_parallelism=1)  # expect: PEN018
