"""Grading, by an author who writes classes that hold a ctx."""

from __future__ import annotations

import os
import random
import subprocess
import time
import urllib.parse
import urllib.request
import uuid
from dataclasses import dataclass
from datetime import UTC, date, datetime, timedelta
from random import choice as pick
from typing import ClassVar

import httpx
import requests

from penstock import ActionCtx, ApplicationError, Id, MutationCtx, QueryCtx, Range, public, signed_in

from .access import me
from .setting import academy
from .tables import Answer, Lesson, Student

STARTED = datetime.now(UTC)
PLAGIARISM = os.environ.get("PLAGIARISM_URL", "https://plagiarism.example.com")
http = httpx.AsyncClient(timeout=10)


class Grading:
    """The grades of one lesson."""

    best: ClassVar[int] = 10

    def __init__(self, ctx: MutationCtx, lesson: Id[Lesson]) -> None:
        self.ctx = ctx
        self.lesson = lesson

    async def give(self, answer: Id[Answer], points: int) -> None:
        await self.ctx.db.patch(Answer, answer, points=min(points, self.best))

    async def give_hastily(self, answer: Id[Answer], points: int) -> None:
        self.ctx.db.patch(Answer, answer, points=points)  # expect: PEN001

    async def all(self) -> list[Answer]:
        return await self.ctx.db.query(Answer).collect()  # expect: PEN003

    async def of_lesson(self) -> list[Answer]:
        return await self.ctx.db.query(Answer).with_index(Answer.by_lesson_student_points, lesson=self.lesson).take(500)

    async def ungraded(self) -> list[Answer]:
        query = self.ctx.db.query(Answer)
        return await query.filter(lambda answer: answer.points is None).take(100)  # expect: PEN002

    async def stamp(self, answer: Id[Answer]) -> None:
        await self.ctx.db.patch(Answer, answer, graded_by=datetime.now(UTC).isoformat())  # expect: PEN014

    async def drop(self, answer: Id[Answer]) -> None:
        await self.ctx.db.delete(answer)  # expect: PEN013


@dataclass
class Reader:
    """Holds the ctx of a query."""

    ctx: QueryCtx

    async def count(self, lesson: Id[Lesson]) -> int:
        return await self.ctx.db.query(Answer).with_index(Answer.by_lesson_student_points, lesson=lesson).count()

    async def everything(self) -> list[Lesson]:
        return await self.ctx.db.query(Lesson).collect()  # expect: PEN003

    async def waits(self) -> bool:
        return time.time() % 2 == 0  # expect: PEN014


@academy.mutation(access=signed_in)
async def grade(ctx: MutationCtx, lesson: Id[Lesson], answer: Id[Answer], points: int) -> None:
    await Grading(ctx, lesson).give(answer, points)


@academy.mutation(access=signed_in)
async def grade_hastily(ctx: MutationCtx, lesson: Id[Lesson], answer: Id[Answer], points: int) -> None:
    grading = Grading(ctx, lesson)
    grading.give(answer, points)  # expect: PEN001


@academy.query(access=signed_in)
async def answers(ctx: QueryCtx, lesson: Id[Lesson]) -> int:
    return await Reader(ctx).count(lesson)


@academy.mutation(access=signed_in)
async def answer(ctx: MutationCtx, lesson: Id[Lesson], text: str) -> Id[Answer]:
    student = await me(ctx)
    late = ctx.now() - timedelta(days=1)
    return await ctx.db.insert(Answer(lesson=lesson, student=student.id, text=f"{late:%H} {text}"))


@academy.mutation(access=signed_in)
async def answer_today(ctx: MutationCtx, lesson: Id[Lesson], text: str) -> Id[Answer]:
    student = await me(ctx)
    today = date.today()  # expect: PEN014
    return await ctx.db.insert(Answer(lesson=lesson, student=student.id, text=f"{today} {text}"))


@academy.query(access=public)
async def a_lesson(ctx: QueryCtx) -> Lesson | None:
    lessons = await ctx.db.query(Lesson).take(10)
    return pick(lessons) if lessons else None  # expect: PEN014


@academy.query(access=public)
async def a_lesson_again(ctx: QueryCtx) -> Lesson | None:
    lessons = await ctx.db.query(Lesson).take(10)
    return ctx.random.choice(lessons) if lessons else None


@academy.query(access=public)
async def a_number(ctx: QueryCtx) -> int:
    rng = random.Random(7)
    return rng.randint(1, await ctx.db.query(Lesson).count())


@academy.internal_mutation
async def a_key(ctx: MutationCtx, student: Id[Student]) -> str:
    key = uuid.uuid4().hex  # expect: PEN014
    await ctx.db.patch(Student, student, name=key)
    return key


@academy.internal_mutation
async def in_region(ctx: MutationCtx, student: Id[Student]) -> None:
    await ctx.db.patch(Student, student, country=os.environ["REGION"])  # expect: PEN014


@academy.internal_mutation
async def in_region_or(ctx: MutationCtx, student: Id[Student]) -> None:
    region = os.getenv("REGION")  # expect: PEN014
    if region:
        await ctx.db.patch(Student, student, country=region)


@academy.internal_mutation
async def in_region_of_start(ctx: MutationCtx, student: Id[Student]) -> None:
    await ctx.db.patch(Student, student, country=PLAGIARISM, joined_on=STARTED.date())


def due_now() -> datetime:
    return datetime.now(UTC)  # expect: PEN014


def due_from(now: datetime) -> datetime:
    return now + timedelta(days=3)


@academy.internal_mutation
async def join(ctx: MutationCtx, student: Id[Student]) -> None:
    await ctx.db.patch(Student, student, joined_on=due_now().date())


@academy.internal_mutation
async def join_rightly(ctx: MutationCtx, student: Id[Student]) -> None:
    await ctx.db.patch(Student, student, joined_on=due_from(ctx.now()).date())


@academy.internal_mutation
async def check_copy(ctx: MutationCtx, answer: Id[Answer]) -> None:
    found = await ctx.db.get(Answer, answer)
    reply = await http.post(PLAGIARISM, json={"text": found.text if found else ""})  # expect: PEN015
    if reply.status_code == 409:
        await ctx.db.patch(Answer, answer, points=0)


@academy.internal_mutation
async def check_copy_in_client(ctx: MutationCtx, answer: Id[Answer]) -> None:
    async with httpx.AsyncClient() as client:  # expect: PEN015
        await client.get(PLAGIARISM)
    await ctx.db.patch(Answer, answer, points=0)


@academy.internal_query
async def check_copy_in_query(ctx: QueryCtx, answer: Id[Answer]) -> bool:
    return requests.get(PLAGIARISM, timeout=3).ok and await ctx.db.get(Answer, answer) is not None  # expect: PEN015


async def _alike(ctx: QueryCtx, text: str) -> bool:
    with urllib.request.urlopen(PLAGIARISM + urllib.parse.quote(text)) as reply:  # expect: PEN015
        return reply.read() == b"yes"


@academy.internal_mutation
async def check_copy_by_helper(ctx: MutationCtx, answer: Id[Answer]) -> None:
    if await _alike(ctx, answer):
        await ctx.db.patch(Answer, answer, points=0)


@academy.internal_mutation
async def to_pdf(ctx: MutationCtx, answer: Id[Answer]) -> None:
    subprocess.run(["pandoc", answer], check=True)  # expect: PEN015
    await ctx.db.patch(Answer, answer, graded_by="pdf")


@academy.internal_mutation
async def link(ctx: MutationCtx, answer: Id[Answer]) -> str:
    try:
        url = httpx.URL(PLAGIARISM, params={"answer": answer})
    except httpx.InvalidURL as error:
        raise ApplicationError(str(error)) from error
    return f"{url}{urllib.parse.quote(answer)}"


@academy.internal_action
async def check_outside(ctx: ActionCtx, answer: Id[Answer]) -> bool:
    at = datetime.now(UTC)
    reply = await http.post(PLAGIARISM, json={"answer": answer, "at": at.isoformat(), "try": random.random()})
    return reply.is_success


@academy.internal_mutation
async def ranged(ctx: MutationCtx, least: int) -> list[Answer]:
    wanted: Range[int] | None = None
    for row in await ctx.db.query(Answer).with_index(Answer.by_points, points=least).take(5):
        if row.graded_by is None:
            return [row]
    return [] if wanted is None else []


@academy.internal_mutation
async def first_mine(ctx: MutationCtx, student: Id[Student]) -> Answer | None:
    async for row in ctx.db.query(Answer):  # expect: PEN002
        if row.student == student:
            return row
    return None


@academy.internal_mutation
async def all_of_mine(ctx: MutationCtx, student: Id[Student]) -> list[Answer]:
    found = [row async for row in ctx.db.query(Answer) if row.student == student]  # expect: PEN002
    return found


@academy.internal_mutation
async def all_long(ctx: MutationCtx) -> list[Answer]:
    return [row async for row in ctx.db.query(Answer) if len(row.text) > 1000]
