import penstock
from datetime import datetime, timedelta
from penstock import Id, Index, Retry, Table as Base

app = penstock.App()


class Vehicle(Base):
    plate: str
    depot: str
    driver: str | None = None
    km: int = 0
    active: bool = True

    by_plate = Index("plate", unique=True)
    by_depot = Index("depot")  # expect: PEN004
    by_depot_km = Index("depot", "km")


class Trip(Base):
    vehicle: Id[Vehicle]
    driver: str
    started: datetime
    ended: datetime | None = None
    km: int = 0

    by_vehicle = Index("vehicle", "started")
    by_driver = Index("driver")
    by_started = Index("started")


class Position(Base):
    vehicle: Id[Vehicle]
    lat: float
    lon: float
    at: datetime

    by_vehicle_at = Index("vehicle", "at")


class Fine(Base):
    plate: str
    cents: int
    paid: bool = False


POLICIES = {"slow": Retry.fixed(timedelta(minutes=2)), "fast": Retry(3, 0.1, 2)}
erp = app.workpool("erp", max_parallelism=1, default_retry=POLICIES["slow"])  # expect: PEN018
garage = app.workpool("garage", max_parallelism=1, default_retry=POLICIES["fast"])
police = app.workpool("police", max_parallelism=2).with_options(retry=True)
