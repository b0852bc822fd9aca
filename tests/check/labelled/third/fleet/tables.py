import datetime
from enum import StrEnum

from penstock import App, Id, Index, Retry, Table

app = App(require_access=True)


class State(StrEnum):
    NEW = "new"
    LOADED = "loaded"
    DONE = "done"


class Van(Table):
    plate: str
    depot: str
    driver: str | None = None

    by_depot = Index("depot", "plate")
    by_driver = Index("driver")
    by_driver_and_depot = Index("driver", "depot")


class Parcel(Table):
    van: Id[Van] | None
    receiver: str
    phone: str
    weight: int
    state: State = State.NEW

    by_van = Index("van", "state")
    by_state = Index("state")  # expect: PEN004
    by_state_and_weight = Index("state", "weight")
    by_receiver = Index("receiver")


class Stop(Table):
    van: Id[Van]
    at: datetime.datetime
    note: str = ""

    by_van = Index("van")
    by_van_and_time = Index("van", "at")


class Trip(Table):
    van: Id[Van]
    day: datetime.date
    km: int

    by_van = Index("van")  # expect: PEN004
    by_van_and_day = Index("van", "day")
    by_day = Index("day", unique=True)
    by_day_and_km = Index("day", "km")


texts = app.workpool("texts", max_parallelism=4, retry_actions_by_default=True)
maps = app.workpool("maps", max_parallelism=2)
paced = app.workpool("paced", max_parallelism=1, default_retry=Retry.linear(datetime.timedelta(seconds=30)))  # expect: PEN018
