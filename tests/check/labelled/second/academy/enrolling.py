"""Enrolments, as somebody writes who keeps ctx.db in a name, and likes gather and comprehensions."""

import asyncio
from datetime import timedelta
from typing import Optional

from penstock import ActionCtx, ApplicationError, Id, JobId, MutationCtx, QueryCtx, WorkId, public, signed_in

from academy import setting
from academy.access import me, must_be_same
from academy.setting import academy, mails
from academy.tables import Course, Enrolment, Student


@academy.mutation(access=signed_in)
async def enrol(ctx: MutationCtx, course: Id[Course]) -> Id[Enrolment]:
    student = await me(ctx)
    db = ctx.db
    enrolment = await db.insert(Enrolment(course=course, student=student.id))
    await mails.enqueue(ctx, welcome, student.email)
    return enrolment


@academy.mutation(access=signed_in)
async def enrol_hastily(ctx: MutationCtx, course: Id[Course]) -> None:
    student = await me(ctx)
    db = ctx.db
    db.insert(Enrolment(course=course, student=student.id))  # expect: PEN001
    mails.enqueue(ctx, welcome, student.email)  # expect: PEN001


@academy.mutation(access=signed_in)
async def leave(ctx: MutationCtx, enrolment: Id[Enrolment]) -> None:
    found = ctx.db.get(Enrolment, enrolment)  # expect: PEN001
    if found:
        await ctx.db.patch(Enrolment, enrolment, state="left")


@academy.mutation(access=signed_in)
async def leave_or_delete(ctx: MutationCtx, enrolment: Id[Enrolment], forget: bool) -> None:
    forget and ctx.db.delete(Enrolment, enrolment)  # expect: PEN001
    if not forget:
        await ctx.db.patch(Enrolment, enrolment, state="left")


@academy.mutation(access=signed_in)
async def leave_later(ctx: MutationCtx, enrolment: Id[Enrolment]) -> None:
    ctx.scheduler.run_after(timedelta(days=1), forget, enrolment)  # expect: PEN001


@academy.mutation(access=signed_in)
async def leave_all(ctx: MutationCtx, enrolments: list[Id[Enrolment]]) -> None:
    await asyncio.gather(*(ctx.db.patch(Enrolment, one, state="left") for one in enrolments))


@academy.mutation(access=signed_in)
async def leave_all_listed(ctx: MutationCtx, enrolments: list[Id[Enrolment]]) -> None:
    waiting = [ctx.db.patch(Enrolment, one, state="left") for one in enrolments]
    for one in waiting:
        await one


@academy.mutation(access=signed_in)
async def leave_in_tasks(ctx: MutationCtx, first: Id[Enrolment], second: Id[Enrolment]) -> None:
    task = asyncio.create_task(ctx.db.delete(Enrolment, first))
    await ctx.db.delete(Enrolment, second)
    await task


@academy.mutation(access=signed_in)
async def leave_group(ctx: MutationCtx, first: Id[Enrolment], second: Id[Enrolment]) -> None:
    async with asyncio.TaskGroup() as group:
        group.create_task(ctx.db.delete(Enrolment, first))
        group.create_task(ctx.db.delete(Enrolment, second))


@academy.query(access=signed_in)
async def open_ones(ctx: QueryCtx, course: Id[Course]) -> bool:
    found = ctx.db.query(Enrolment).with_index(Enrolment.by_course_and_state, course=course, state="open")
    return found.count() is not None  # expect: PEN001


@academy.query(access=signed_in)
async def open_ones_counted(ctx: QueryCtx, course: Id[Course]) -> int:
    found = ctx.db.query(Enrolment).with_index(Enrolment.by_course_and_state, course=course, state="open")
    number = found.count()
    return await number


def loading(ctx: QueryCtx, enrolment: Id[Enrolment]):
    return ctx.db.get(Enrolment, enrolment)


async def _mark(ctx: MutationCtx, enrolment: Id[Enrolment]) -> None:
    await ctx.db.patch(Enrolment, enrolment, state="done")


@academy.mutation(access=signed_in)
async def done(ctx: MutationCtx, enrolment: Id[Enrolment]) -> None:
    if (await loading(ctx, enrolment)) is None:
        raise ApplicationError("gone")
    _mark(ctx, enrolment)  # expect: PEN001


@academy.mutation(access=signed_in)
async def done_rightly(ctx: MutationCtx, enrolment: Id[Enrolment]) -> None:
    if (found := await loading(ctx, enrolment)) and found.state == "open":
        await _mark(ctx, found.id)


@academy.internal_action
async def welcome(ctx: ActionCtx, email: str) -> str:
    return f"welcome {email}"


@academy.internal_mutation
async def forget(ctx: MutationCtx, enrolment: Id[Enrolment]) -> None:
    await ctx.db.delete(Enrolment, enrolment)


@academy.internal_mutation
async def forget_unnamed(ctx: MutationCtx, enrolment: Id[Enrolment]) -> None:
    await ctx.db.delete(enrolment)  # expect: PEN013


@academy.internal_mutation
async def mark_unnamed(ctx: MutationCtx, enrolment: Id[Enrolment]) -> None:
    rows = ctx.db
    await rows.patch(enrolment, state="done")  # expect: PEN013


@academy.internal_query
async def read_unnamed(ctx: QueryCtx, key: Id[Student]) -> Optional[Student]:
    cache: dict[str, Student] = {}
    return cache.get(key) or await ctx.db.get(key)  # expect: PEN013


@academy.internal_query
async def read_named(ctx: QueryCtx, key: Id[Student]) -> Student | None:
    table = Student
    return await ctx.db.get(table, key)



async def load_any(ctx: QueryCtx, table: type[Student] | type[Course], key: Id[Student]) -> object:
    return await ctx.db.get(table, key)


@academy.mutation(access=public)
async def leave_by_mail(ctx: MutationCtx, enrolment: Id[Enrolment], email: str) -> None:
    found = await ctx.db.get(Enrolment, enrolment)
    student = await ctx.db.get(Student, found.student) if found else None
    if student is None or student.email != email:  # expect: PEN007
        raise ApplicationError("Not your enrolment.")
    await ctx.db.delete(Enrolment, enrolment)


@academy.mutation(access=public)
async def leave_by_user(ctx: MutationCtx, course: Id[Course], user: str) -> None:
    found = await ctx.db.get(Course, course)
    allowed = found is not None and found.teacher == user  # expect: PEN007
    if not allowed:
        raise PermissionError("no")
    await ctx.db.delete(Course, course)


@academy.mutation(access=public)
async def leave_by_helper(ctx: MutationCtx, course: Id[Course], username: str) -> None:
    found = await ctx.db.get(Course, course)
    assert found is not None
    must_be_same(found.teacher, username)  # expect: PEN007
    await ctx.db.delete(Course, course)


@academy.mutation(access=public)
async def leave_by_assertion(ctx: MutationCtx, course: Id[Course], teacher_email: str) -> None:
    found = await ctx.db.get(Course, course)
    assert found and found.teacher == teacher_email  # expect: PEN007
    await ctx.db.delete(Course, course)


@academy.query(access=public)
async def exists(ctx: QueryCtx, email: str) -> bool:
    found = await ctx.db.query(Student).with_index(Student.by_email, email=email).unique()
    return found is not None and found.email == email


@academy.mutation(access=public)
async def sign_up(ctx: MutationCtx, email: str, name: str) -> Id[Student]:
    if await ctx.db.query(Student).with_index(Student.by_email, email=email).first():
        raise ApplicationError("You are here already.")
    return await ctx.db.insert(Student(email=email, name=name))


def _is_email(email: str) -> None:
    if "@" not in email or email != email.strip():
        raise ApplicationError("That is no email.")


@academy.mutation(access=public)
async def sign_up_checked(ctx: MutationCtx, email: str) -> Id[Student]:
    if email != email.lower():
        raise ApplicationError("Write it small.")
    _is_email(email)
    return await ctx.db.insert(Student(email=email, name=""))


async def _own(ctx: MutationCtx, course: Id[Course], owner: str) -> Course:
    found = await ctx.db.get(Course, course)
    if not found or found.teacher != owner:
        raise ApplicationError("Not yours.")
    return found


@academy.mutation(access=public)
async def close_by_email(ctx: MutationCtx, course: Id[Course], email: str) -> None:
    found = await _own(ctx, course, email)  # expect: PEN007
    await ctx.db.delete(Course, found.id)


@academy.mutation(access=signed_in)
async def update_title(ctx: MutationCtx, course: Id[Course], title: str, version: int) -> None:
    found = await ctx.db.get(Course, course)
    if found is None or found.version != version:
        raise ApplicationError("Somebody else changed it. Read it again.")
    await ctx.db.patch(Course, course, title=title, version=version + 1)


@academy.mutation(access=signed_in)
async def move_to(ctx: MutationCtx, enrolment: Id[Enrolment], state: str) -> None:
    found = await ctx.db.get(Enrolment, enrolment)
    if found is None or found.state != "open":
        raise ApplicationError("Only open enrolments move.")
    if state == "open":
        raise ApplicationError("It is open.")
    await ctx.db.patch(Enrolment, enrolment, state=state)


@academy.mutation(access=signed_in)
async def remind(ctx: MutationCtx, enrolment: Id[Enrolment]) -> None:
    await ctx.db.patch(Enrolment, enrolment, score=0)


@academy.internal_mutation
async def remind_inside(ctx: MutationCtx, enrolment: Id[Enrolment]) -> None:
    await remind(ctx, enrolment)


@academy.mutation(access=signed_in)
async def remind_later(ctx: MutationCtx, enrolment: Id[Enrolment]) -> JobId:
    return await ctx.scheduler.run_after(timedelta(days=7), remind, enrolment)  # expect: PEN008


@academy.mutation(access=signed_in)
async def remind_at(ctx: MutationCtx, enrolment: Id[Enrolment]) -> None:
    job = remind
    await ctx.scheduler.run_at(ctx.now() + timedelta(days=7), job, enrolment)  # expect: PEN008


@academy.mutation(access=signed_in)
async def remind_pooled(ctx: MutationCtx, enrolment: Id[Enrolment]) -> WorkId:
    return await setting.mails.enqueue(ctx, remind, enrolment)  # expect: PEN008


@academy.mutation(access=signed_in)
async def remind_pooled_rightly(ctx: MutationCtx, enrolment: Id[Enrolment]) -> WorkId:
    return await setting.mails.enqueue(ctx, remind_inside, enrolment)


@academy.mutation(access=signed_in)
async def remind_many(ctx: MutationCtx, enrolments: list[Id[Enrolment]]) -> None:
    calls = [{"enrolment": one} for one in enrolments]
    await mails.enqueue_batch(ctx, remind, calls)  # expect: PEN008


@academy.mutation(access=signed_in)
async def remind_and_tell(ctx: MutationCtx, email: str) -> None:
    await mails.with_options(on_complete=told).enqueue(ctx, welcome, email)  # expect: PEN008


@academy.mutation(access=signed_in)
async def told(ctx: MutationCtx, work_id: WorkId, result: str, context: None) -> None:
    await ctx.db.insert(Student(email=result, name=""))
