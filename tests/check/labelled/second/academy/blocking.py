"""Functions with def, and what an own web server calls."""

from __future__ import annotations

import sqlite3
import time
from datetime import datetime, timezone
from functools import wraps
from typing import TYPE_CHECKING, Annotated, Callable, TypeVar, Union

import penstock
from penstock import Backend, Id, public, signed_in, sync
from penstock.sync import ActionCtx, MutationCtx, QueryCtx

from .loading import add_course, course_of
from .sending import print_draft
from .setting import academy, mails, member_query
from .tables import Course, Student

try:
    import orjson as json
except ImportError:
    import json

if TYPE_CHECKING:
    from fastapi import Request

F = TypeVar("F", bound=Callable)
CourseId = Annotated[Id[Course], "a course"]
Ctx = Union[QueryCtx, MutationCtx]


def timed(function: F) -> F:
    @wraps(function)
    def inner(*arguments, **named):
        began = time.monotonic()
        try:
            return function(*arguments, **named)
        finally:
            print(time.monotonic() - began)

    return inner


@academy.query(access=public)
def titles(ctx: QueryCtx) -> list[str]:
    return [course.title for course in ctx.db.query(Course).take(20)]


@academy.query(access=public)
def all_titles(ctx: QueryCtx) -> list[str]:
    return [course.title for course in ctx.db.query(Course).collect()]  # expect: PEN003


@academy.query
def open_titles(ctx: QueryCtx) -> list[str]:  # expect: PEN006
    return [course.title for course in ctx.db.query(Course).take(20)]


@academy.query
@timed
def timed_titles(ctx: QueryCtx) -> list[str]:  # expect: PEN006
    return [course.title for course in ctx.db.query(Course).take(20)]


@academy.query
def own_titles(ctx: QueryCtx) -> list[str]:
    teacher = ctx.auth.require().email
    return [one.title for one in ctx.db.query(Course).with_index(Course.by_teacher, teacher=teacher).take(20)]


@academy.mutation(access=signed_in)
def rename(ctx: MutationCtx, course: CourseId, title: str) -> None:
    ctx.db.patch(Course, course, title=title)


@academy.mutation(access=signed_in)
def rename_unnamed(ctx: MutationCtx, course: CourseId, title: str) -> None:
    ctx.db.patch(course, title=title)  # expect: PEN013


@academy.mutation(access=signed_in)
def stamp(ctx: sync.MutationCtx, course: CourseId) -> None:
    ctx.db.patch(Course, course, opens_at=datetime.now(timezone.utc))  # expect: PEN014


@academy.mutation(access=signed_in)
def stamp_old(ctx: penstock.sync.MutationCtx, course: CourseId) -> None:
    ctx.db.patch(Course, course, opens_at=datetime.utcnow())  # expect: PEN014


@academy.mutation(access=signed_in)
def rename_raw(ctx: MutationCtx, course: CourseId, raw: bytes) -> None:
    match json.loads(raw):
        case {"title": str(title)}:
            ctx.db.patch(Course, course, title=title)
        case {"price": int(price)} if price > 0:
            ctx.db.patch(course, price=price)  # expect: PEN013
        case _:
            raise penstock.ApplicationError("neither")


@academy.mutation(access=signed_in)
def rename_pairs(ctx: MutationCtx, course: CourseId, pairs: list[dict]) -> None:  # expect: PEN005
    for pair in pairs:
        ctx.db.patch(Course, course, **pair)


@academy.mutation(access=signed_in)
def rename_object(ctx: MutationCtx, course: CourseId, title: object) -> None:  # expect: PEN005
    ctx.db.patch(Course, course, title=str(title))


@academy.internal_action
def load_here(ctx: ActionCtx, slugs: list[str]) -> None:
    for slug in slugs:
        ctx.run_mutation(add_course, slug)  # expect: PEN012


@academy.internal_action
def look_here(ctx: ActionCtx, slug: str) -> None:
    if ctx.run_query(course_of, slug) is None:
        ctx.run_mutation(add_course, slug)  # expect: PEN011


@academy.internal_action
def tell_here(ctx: ActionCtx, slug: str) -> None:
    ctx.run_mutation(add_course, slug)
    mails.enqueue(ctx, print_draft, slug)  # expect: PEN016


def named(ctx: Ctx, student: Id[Student]) -> str:
    found = ctx.db.get(Student, student)
    return found.name if found else ""


def everyone(ctx: Ctx) -> list[Student]:
    return ctx.db.query(Student).collect()  # expect: PEN003


@academy.mutation(access=signed_in)
def greet(ctx: MutationCtx, student: Id[Student]) -> str:
    def greeting(name: str) -> str:
        return f"Hello {name}"

    def unheard() -> None:
        ctx.db.patch(student, name="")  # expect: PEN013

    unheard()
    return greeting(named(ctx, student))


@member_query
async def member_titles(ctx: penstock.QueryCtx) -> list[str]:
    return [course.title for course in await ctx.db.query(Course).take(20)]


@member_query
async def member_rows(ctx: penstock.QueryCtx) -> list[str]:
    return [course.title for course in await ctx.db.query(Course).collect()]  # expect: PEN003


async def create(request: Request, backend: Backend) -> Id[Course]:
    body = await request.json()
    return await backend.run_mutation(add_course, body["slug"])


async def create_and_tell(backend: Backend, slug: str) -> Id[Course]:
    course = await backend.run_mutation(add_course, slug)
    await mails.enqueue(backend, print_draft, course)  # expect: PEN016
    return course


class Service:
    """Not of penstock: its words only look alike."""

    def __init__(self, db: sqlite3.Connection) -> None:
        self.db = db
        self.cache: dict[str, int] = {}

    def collect(self) -> list[int]:
        return [*self.cache.values()]

    def get(self, key: str) -> int | None:
        self.db.execute("select 1")
        return self.cache.get(key)

    async def run_mutation(self, name: str) -> float:
        return time.time() + len(self.collect())
