"""Actions in threads and processes, and what is sent away."""

from __future__ import annotations

import time

import requests
from penstock import JobId, Message, Retry, SyncMutationTaskCtx, SyncTaskCtx, interval, sync

from fleet import base, driving
from fleet.base import Fine, Position, Trip, Vehicle, app, erp, garage, gps, police
from fleet.tools import fetch

session = requests.Session()
session.headers["User-Agent"] = "fleet"


@app.internal_mutation
def store(ctx: sync.MutationCtx, plate: str, cents: int) -> None:
    ctx.db.insert(Fine(plate=plate, cents=cents))


@app.internal_mutation
def store_all(ctx: sync.MutationCtx, fines: list[tuple[str, int]]) -> None:
    ctx.db.insert_many([Fine(plate=plate, cents=cents) for plate, cents in fines])


@app.internal_query
def plates(ctx: sync.QueryCtx) -> list[str]:
    return [car.plate for car in ctx.db.query(Vehicle)]  # expect: PEN003


@app.internal_query
def is_known(ctx: sync.QueryCtx, plate: str) -> bool:
    return ctx.db.query(Vehicle).with_index(Vehicle.by_plate, plate=plate).first() is not None


@app.internal_action
def ask_police(ctx: sync.ActionCtx) -> int:
    fines = []
    for plate in ctx.run_query(plates):
        answer = session.get(f"https://police.example.com/fines/{plate}", timeout=10)
        fines += [(plate, one["cents"]) for one in answer.json()]
    ctx.run_mutation(store_all, fines)
    return len(fines)


@app.internal_action
def ask_police_one_by_one(ctx: sync.ActionCtx, fines: list[tuple[str, int]]) -> int:
    for plate, cents in fines:
        if ctx.run_query(is_known, plate):  # expect: PEN012
            ctx.run_mutation(store, plate, cents)  # expect: PEN011, PEN012
    return len(fines)


@app.internal_action
def file_complaint(ctx: sync.ActionCtx, plate: str) -> None:
    session.post("https://police.example.com/complaints", json={"plate": plate}, timeout=10)  # expect: PEN017


@app.internal_action
def file_complaint_once(ctx: sync.ActionCtx, plate: str) -> None:
    key = {"Idempotency-Key": f"complaint {plate}"}
    session.post("https://police.example.com/complaints", json={"plate": plate}, headers=key, timeout=10)


@app.internal_mutation
def complain(ctx: sync.MutationCtx, plate: str) -> JobId:
    police.enqueue(ctx, file_complaint_once, plate)
    return police.enqueue(ctx, file_complaint, plate)


@app.internal_action(runtime="process")
def route(ctx: sync.ActionCtx, stops: list[str]) -> list[str]:
    return sorted(stops)


@app.internal_action
def plan(ctx: sync.ActionCtx, stops: list[str]) -> list[str]:
    time.sleep(0.1)
    return ctx.run_action(route, stops)


@app.internal_action
def plan_twice(ctx: sync.ActionCtx, stops: list[str]) -> list[str]:
    return ctx.run_action(plan, ctx.run_action(plan, stops))  # expect: PEN010


@app.internal_action
def count_then_store(ctx: sync.ActionCtx, plate: str) -> int:
    known = ctx.run_query(plates)
    if plate not in known:
        return 0
    ctx.run_mutation(store, plate, 0)  # expect: PEN011
    return len(known)


@app.internal_action
def store_then_file(ctx: sync.ActionCtx, plate: str) -> JobId:
    ctx.run_mutation(store, plate, 5_000)
    return police.enqueue(ctx, file_complaint_once, plate)  # expect: PEN016


@app.internal_action
def store_then_ask(ctx: sync.ActionCtx, plate: str) -> None:
    ctx.run_mutation(store, plate, 5_000)
    _file_soon(ctx, plate)  # expect: PEN016


def _file_soon(ctx: sync.ActionCtx, plate: str) -> None:
    police.enqueue(ctx, file_complaint_once, plate)


@app.internal_action
def ask_then_file(ctx: sync.ActionCtx, plate: str) -> None:
    ctx.run_mutation(store, plate, 5_000)
    if b"guilty" in fetch(f"https://court.example.com/{plate}"):
        police.enqueue(ctx, file_complaint_once, plate)


@app.internal_action
def stop_trip(ctx: sync.ActionCtx, trip: str) -> None:
    ctx.run_mutation(driving.stop_well, trip, 0)  # expect: PEN008


@app.internal_mutation
def stop_trips(ctx: sync.MutationCtx, depot: str) -> None:
    trips = [trip.id for trip in ctx.db.query(Trip).with_index(Trip.by_driver, driver=depot).collect()]
    pool = garage.with_options(on_complete=stopped, context=trips)  # expect: PEN020
    pool.enqueue(ctx, plan, [depot])


@app.internal_mutation
def stop_first_trips(ctx: sync.MutationCtx, depot: str) -> None:
    trips = [trip.id for trip in ctx.db.query(Trip).with_index(Trip.by_driver, driver=depot).take(5)]
    garage.with_options(on_complete=stopped, context=trips).enqueue(ctx, plan, [depot])


@app.internal_mutation
def stopped(ctx: sync.MutationCtx, work_id, result, context) -> None:
    for trip in context:
        driving.stop_well(ctx, trip, 0)


app.crons.declare("police", interval(hours=6), ask_police)
app.crons.declare("tidy", interval(hours=1), driving.christen, {"plate": "x"})  # expect: PEN008


@app.outbox(Trip)
def to_erp(ctx: sync.ActionCtx, trip: Trip) -> None:
    send_to_erp(trip)


def send_to_erp(trip: Trip) -> None:
    try:
        session.post("https://erp.example.com", json={"km": trip.km}, headers={"Idempotency-Key": trip.id}, timeout=5)
    except Exception:  # expect: PEN019
        pass


@app.outbox(Vehicle, name="register", retry=Retry.fixed(60))
def to_register(ctx: sync.ActionCtx, message: Message[Vehicle]) -> None:
    headers = {"Idempotency-Key": message.id}
    for _ in range(3):
        try:
            session.post("https://register.example.com", json={"plate": message.row.plate}, headers=headers, timeout=5)
            break
        except requests.Timeout:
            time.sleep(1)
    else:
        raise TimeoutError("register")


@app.reactive_task(Fine, filter=lambda fine: ~fine.paid)
def pay(ctx: SyncTaskCtx[Fine]) -> None:
    fine = ctx.get_document()
    requests.post("https://bank.example.com", json={"cents": fine.cents}, timeout=5)  # expect: PEN017


@app.reactive_task(Position, watch=("at",))
def drive(ctx: SyncMutationTaskCtx[Position]) -> None:
    position = ctx.get_document()
    car = ctx.db.get(Vehicle, position.vehicle)
    if car is not None:
        ctx.db.patch(Vehicle, car.id, km=car.km + 1)
    gps.enqueue(ctx, route, [])
    erp.enqueue(ctx, route, [])


@app.reactive_task(Position, name="stale", watch=("at",))
def stale(ctx: SyncMutationTaskCtx[Position]) -> None:
    position = ctx.get_document()
    if time.time() - position.at.timestamp() > 60:  # expect: PEN014
        ctx.db.delete(Position, position.id)
