"""Actions in threads and processes, and what is sent away."""

from __future__ import annotations

import time

import requests
from penstock import JobId, interval, sync

from fleet import driving
from fleet.base import Fine, Trip, Vehicle, app, police

session = requests.Session()


@app.internal_mutation
def store_all(ctx: sync.MutationCtx, fines: list[tuple[str, int]]) -> None:
    ctx.db.insert_many([Fine(plate=plate, cents=cents) for plate, cents in fines])


@app.internal_query
def plates(ctx: sync.QueryCtx) -> list[str]:
    return [car.plate for car in ctx.db.query(Vehicle)]  # expect: PEN003


@app.internal_action
def ask_police(ctx: sync.ActionCtx) -> int:
    fines = []
    for plate in ctx.run_query(plates):
        answer = session.get(f"https://police.example.com/fines/{plate}", timeout=10)
        fines += [(plate, one["cents"]) for one in answer.json()]
    ctx.run_mutation(store_all, fines)
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
