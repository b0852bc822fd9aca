from collections import Counter
from datetime import UTC, datetime, timedelta
from functools import wraps
from typing import Any, Optional
import random
import requests

from penstock import AccessDenied, Id, owner_of, public, signed_in
from penstock.sync import ActionCtx, MutationCtx, QueryCtx

from schema import Course, Enrolment, Lesson, app

videos = app.workpool("videos", max_parallelism=3)


def teacher_of(ctx: QueryCtx, course: Id[Course]) -> bool:
    found = ctx.db.get(Course, course)
    return found is not None and found.teacher == ctx.auth.require().token_identifier


def claims_to_teach(ctx: QueryCtx, course: Id[Course], teacher: str) -> bool:
    found = ctx.db.get(Course, course)
    return found is not None and found.teacher == teacher


def timed(f):
    @wraps(f)
    def inner(ctx, *args, **kwargs):
        return f(ctx, *args, **kwargs)

    return inner


@app.mutation(access=signed_in)
def create(ctx: MutationCtx, title: str) -> Id[Course]:
    return ctx.db.insert(Course(title=title, teacher=ctx.auth.require().token_identifier))


@app.mutation(access=teacher_of)
def retitle(ctx: MutationCtx, course: Id[Course], title: str) -> None:
    ctx.db.patch(Course, course, title=title)


@app.mutation(access=claims_to_teach)  # expect: PEN007
def reopen(ctx: MutationCtx, course: Id[Course], teacher: str) -> None:
    ctx.db.patch(Course, course, open=True)


@app.mutation(access=owner_of(Course, "course", field="teacher"))
def close(ctx: MutationCtx, course: Id[Course]) -> None:
    ctx.db.patch(Course, course, is_open=False)  # expect: PEN021


@app.mutation
@timed
def touch(ctx: MutationCtx, course: Id[Course]) -> None:  # expect: PEN006
    ctx.db.patch(Course, course, open=True)


@app.mutation(access=signed_in)
def enrol(ctx: MutationCtx, course: Id[Course]) -> Id[Enrolment]:
    student = ctx.auth.require().token_identifier
    return ctx.db.insert(Enrolment(course=course, student=student))


@app.mutation(access=signed_in)
def unenrol(ctx: MutationCtx, enrolment: Id[Enrolment], student: str) -> None:
    row = ctx.db.get(Enrolment, enrolment)
    if row is None or student != row.student:  # expect: PEN007
        raise AccessDenied("not yours")
    ctx.db.delete(Enrolment, enrolment)


@app.mutation(access=signed_in)
def unenrol_all(ctx: MutationCtx, course: Id[Course], data: Any = None) -> None:  # expect: PEN005
    for row in ctx.db.query(Enrolment).with_index(Enrolment.by_course_student, course=course).take(500):
        ctx.db.delete(Enrolment, row.id)


@app.query(access=public)
def newest(ctx: QueryCtx, course: Id[Course]) -> list[Enrolment]:
    return ctx.db.query(Enrolment).with_index(Enrolment.by_course, course=course).order("desc").take(5)


@app.query(access=signed_in)
def mine(ctx: QueryCtx) -> int:
    student = ctx.auth.require().token_identifier
    return ctx.db.query(Enrolment).with_index(Enrolment.by_student, student=student).count()


@app.query(access=public)
def lesson(ctx: QueryCtx, course: Id[Course], position: int) -> Optional[Lesson]:
    lessons = ctx.db.query(Lesson).with_index(Lesson.by_course, course=course)
    return lessons.filter(lambda one: one.position == position).first()  # expect: PEN002


@app.query(access=public)
def lessons(ctx: QueryCtx, course: Id[Course]) -> list[Lesson]:
    return ctx.db.query(Lesson).with_index(Lesson.by_course, course=course).collect()


@app.query(access=public)
def teachers(ctx: QueryCtx) -> dict[str, int]:
    return dict(Counter(course.teacher for course in ctx.db.query(Course).collect()))  # expect: PEN003


@app.query(access=public)
def shuffled(ctx: QueryCtx, course: Id[Course]) -> list[Lesson]:
    rows = ctx.db.query(Lesson).with_index(Lesson.by_course, course=course).take(20)
    return random.sample(rows, k=len(rows))  # expect: PEN014


@app.query(access=public)
def of_teacher(ctx: QueryCtx, teacher: str) -> list[Course]:
    matching = (one for one in ctx.db.query(Course) if one.teacher == teacher)  # expect: PEN002
    return sorted(matching, key=lambda one: one.title)[:10]


@app.query(access=public)
def open_ones(ctx: QueryCtx) -> list[Course]:
    return ctx.db.query(Course).filter(lambda one: one.open).take(30)


@app.query(access=public)
def by_id(ctx: QueryCtx, course: Id[Course]) -> Course | None:
    return ctx.db.get(course)  # expect: PEN013


@app.action(access=public)
def transcript(ctx: ActionCtx, lesson: str) -> str:
    return requests.get(f"https://videos.example.com/{lesson}.txt", timeout=5).text


@app.action
def upload(ctx: ActionCtx, lesson: str) -> None:  # expect: PEN006
    requests.post("https://videos.example.com", json={"lesson": lesson, "at": datetime.now(UTC).isoformat()}, timeout=5)


@app.internal_action
def encode(ctx: ActionCtx, lesson: str) -> None:
    requests.post("https://videos.example.com/encode", json={"lesson": lesson}, timeout=5)  # expect: PEN017


@app.internal_mutation
def encode_all(ctx: MutationCtx, lessons: list[str]) -> None:
    videos.with_options(retry=True).enqueue_batch(ctx, encode, ({"lesson": one} for one in lessons))
    ctx.scheduler.run_after(timedelta(minutes=5), upload, lessons[0])  # expect: PEN008


@app.internal_mutation
def encode_course(ctx: MutationCtx, course: Id[Course]) -> None:
    rows = ctx.db.query(Lesson).with_index(Lesson.by_course, course=course).collect()
    ctx.run_mutation(encode_all, [row.id for row in rows])  # expect: PEN009


@app.internal_action
def count_all(ctx: ActionCtx, courses: list[str]) -> list[int]:
    return list(map(lambda one: ctx.run_query(count, one), courses))  # expect: PEN012


@app.internal_query
def count(ctx: QueryCtx, course: Id[Course]) -> int:
    return ctx.db.query(Lesson).with_index(Lesson.by_course, course=course).count()


@app.internal_action
def count_and_encode(ctx: ActionCtx, course: str) -> None:
    if ctx.run_query(count, course) > 0:
        ctx.run_mutation(encode_course, course)  # expect: PEN011


def helper(ctx: MutationCtx, course: Id[Course]) -> str:
    return requests.head(f"https://videos.example.com/{course}", timeout=5).reason  # expect: PEN015


@app.mutation(access=teacher_of)
def probe(ctx: MutationCtx, course: Id[Course]) -> str:
    return helper(ctx, course)
