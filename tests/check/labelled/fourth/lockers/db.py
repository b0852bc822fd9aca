"""Tables, the app and the pools."""

import os
from datetime import datetime, timedelta

import penstock as ps
from penstock import App, Id, Index, Retry, Table, TokenBucket

app = App()
API = os.environ.get("CARRIER_URL", "https://carrier.example.com")


class Site(Table):
    city: str
    street: str
    open: bool = True

    by_city = Index("city")  # expect: PEN004
    by_city_street = Index("city", "street")


class Box(Table):
    site: Id[Site]
    size: str
    parcel: str | None = None
    broken: bool = False

    by_site = Index("site")  # read in the order of creation
    by_site_size = Index("site", "size")
    by_parcel = Index("parcel", unique=True)


class Parcel(Table):
    code: str
    owner: str
    box: Id[Box] | None = None
    state: str = "new"
    grams: int = 0
    due: datetime

    by_code = Index("code", unique=True)
    by_code_state = Index("code", "state")
    by_owner = Index("owner", "state")  # expect: PEN004
    by_owner_state_due = Index("owner", "state", "due")
    by_due = Index("due")


class Scan(Table):
    parcel: Id[Parcel]
    at: datetime
    kind: str

    by_parcel = Index("parcel", "at")  # expect: PEN004
    by_parcel_at_kind = Index("parcel", "at", "kind")
    by_kind = Index("kind")
    by_at = Index("at")


class Staff(Table):
    email: str
    user: str
    boss: bool = False

    by_email = Index("email")
    by_user = Index("user")


texts = app.workpool("texts", max_parallelism=5)
doors = app.workpool("doors", max_parallelism=1, default_retry=Retry.fixed(30))  # expect: PEN018
lights = app.workpool("lights", max_parallelism=1, default_retry=Retry(5, 0.25, 2))
bells = app.workpool("bells", max_parallelism=1)
bulk = app.workpool("bulk", max_parallelism=4, default_retry=Retry.fixed(60))
calls = app.workpool("calls", retry_actions_by_default=True)
steps = Retry.series([1, 5, timedelta(minutes=5)])
printer = app.workpool("printer", max_parallelism=1, default_retry=steps)  # expect: PEN018
quick = bells.with_options(retry=Retry.fixed(0.5))
slow = bells.with_options(retry=Retry.linear(20))  # expect: PEN018
app.rate_limit("open", TokenBucket(rate=3, period=timedelta(minutes=1)))
everyone = ps.public
