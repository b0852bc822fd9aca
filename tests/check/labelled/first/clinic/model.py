"""Patients and their visits."""

from __future__ import annotations
import datetime as dt
from penstock import App, Id, Index, QueryCtx, Table
clinic = App()


class Base(Table):
    made_by: str = ""


class Patient(Base):
    insurance: str
    doctor: str
    by_doctor = Index("doctor")
    by_insurance = Index("insurance", unique=True)


class Visit(Base):
    patient: Id[Patient]
    at: dt.datetime
    room: int = 0
    by_patient = Index("patient", "at")  # expect: PEN004
    by_room = Index("room", "at")
    by_patient_room = Index("patient", "at", "room")


def visits_of(ctx: QueryCtx, patient: Id[Patient]):
    return ctx.db.query(Visit).with_index(Visit.by_patient_room, patient=patient)
