"""Courses: public functions in the styles of several authors."""

from __future__ import annotations

from datetime import datetime
from typing import Annotated, Any, TypedDict

from penstock import Id, MutationCtx, Page, PaginationOptions, QueryCtx, gte, public, signed_in
from pydantic import BaseModel, Field

from . import access
from .access import is_teacher, me, own_course
from .setting import academy as app
from .tables import Course, Enrolment, Json, Lesson, Level, Slug

query = app.query
mutation = app.mutation


class CourseChange(BaseModel):
    title: Annotated[str, Field(max_length=80)]
    price: int


class Search(TypedDict):
    word: str
    limit: int


@query(access=public)
async def course_by_slug(ctx: QueryCtx, slug: Slug) -> Course | None:
    return await ctx.db.query(Course).with_index(Course.by_slug, slug=slug).unique()


@query
async def published(ctx: QueryCtx) -> list[Course]:  # expect: PEN006
    return await ctx.db.query(Course).with_index(Course.by_published, published=True).take(50)


@app.query()
async def newest(ctx: QueryCtx) -> list[Course]:  # expect: PEN006
    return await ctx.db.query(Course).order("desc").take(10)


@app.query
async def my_courses(ctx: QueryCtx) -> list[Course]:
    identity = await ctx.auth.require()
    return await ctx.db.query(Course).with_index(Course.by_teacher, teacher=identity.email).take(100)


@app.query
async def my_name(ctx: QueryCtx) -> str:
    return (await me(ctx)).name


@mutation
async def close_course(ctx: MutationCtx, course: Id[Course]) -> None:
    await access.own_course(ctx, course)
    await ctx.db.patch(Course, course, published=False)


@app.mutation
async def close_any_course(ctx: MutationCtx, course: Id[Course]) -> None:  # expect: PEN006
    await ctx.db.patch(Course, course, published=False)


@app.mutation(access=is_teacher)
async def open_course(ctx: MutationCtx, course: Id[Course]) -> None:
    await ctx.db.patch(Course, course, published=True, opens_at=ctx.now())


@mutation(access=signed_in & is_teacher)
async def rename_course(ctx: MutationCtx, course: Id[Course], change: CourseChange) -> None:
    await ctx.db.patch(Course, course, title=change.title, price=change.price)


@mutation(access=is_teacher)
async def edit_course(ctx: MutationCtx, course: Id[Course], change: dict) -> None:  # expect: PEN005
    await ctx.db.patch(Course, course, **change)


@mutation(access=is_teacher)
async def edit_course_json(ctx: MutationCtx, course: Id[Course], change: Json) -> None:  # expect: PEN005
    await ctx.db.patch(Course, course, **change)


@mutation(access=is_teacher)
async def edit_course_any(ctx: MutationCtx, course: Id[Course], title: Any) -> None:  # expect: PEN005
    await ctx.db.patch(Course, course, title=str(title))


@mutation(access=is_teacher)
async def replace_course(ctx: MutationCtx, course: Id[Course], row: Course) -> None:  # expect: PEN005
    await ctx.db.replace(Course, course, row)


@mutation(access=signed_in)
async def add_courses(ctx: MutationCtx, rows: list[Course]) -> None:  # expect: PEN005
    await ctx.db.insert_many(rows)


@mutation(access=signed_in)
async def add_maybe(ctx: MutationCtx, row: Course | None = None) -> None:  # expect: PEN005
    if row:
        await ctx.db.insert(row)


@mutation(access=signed_in)
async def add_untyped(ctx: MutationCtx, title, teacher: str) -> Id[Course]:  # expect: PEN005
    return await ctx.db.insert(Course(slug=title, title=title, teacher=teacher))


@query(access=signed_in)
async def how_many(ctx: QueryCtx):  # expect: PEN005
    return await ctx.db.query(Course).count()


@query(access=signed_in)
async def titles_matching(ctx: QueryCtx, words: list) -> list[str]:  # expect: PEN005
    return [str(word) for word in words]


@query(access=signed_in)
async def searched(ctx: QueryCtx, search: Search) -> list[Course]:
    found = ctx.db.query(Course).filter(lambda course: search["word"] in course.title)
    return await found.take(search["limit"])


@app.internal_mutation
async def import_course(ctx: MutationCtx, raw: dict[str, Any]) -> None:
    await ctx.db.insert(Course(**raw))


@query(access=public)
async def listed(ctx: QueryCtx, pagination_opts: PaginationOptions, level: Level | None = None) -> Page[Course]:
    courses = ctx.db.query(Course)
    if level is not None:
        courses = courses.filter(lambda one: one.level == level)
    return await courses.paginate(pagination_opts)


@query(access=public)
async def of_level(ctx: QueryCtx, level: Level) -> list[Course]:
    return await ctx.db.query(Course).filter(lambda one: one.level == level).take(20)  # expect: PEN002


@query(access=public)
async def dear_ones(ctx: QueryCtx, least: int) -> list[Course]:
    found = ctx.db.query(Course).filter(lambda one: one.price >= least)  # expect: PEN002
    return await found.take(20)


@query(access=public)
async def dear_by_index(ctx: QueryCtx, least: int) -> list[Course]:
    return await ctx.db.query(Course).with_index(Course.by_published, published=True, price=gte(least)).take(20)


@query(access=public)
async def cheap_and_published(ctx: QueryCtx) -> list[Course]:
    shown = ctx.db.query(Course).with_index(Course.by_published, published=True)
    return await shown.filter(lambda one: one.level is Level.BEGINNER).take(20)


@query(access=public)
async def of_teacher(ctx: QueryCtx, teacher: str) -> list[Course]:
    def taught(course: Course) -> bool:
        return course.teacher == teacher

    return await ctx.db.query(Course).filter(taught).take(20)  # expect: PEN002


@query(access=public)
async def of_teacher_in_python(ctx: QueryCtx, teacher: str) -> list[Course]:
    return [course for course in await ctx.db.query(Course).take(5000) if course.teacher == teacher]  # expect: PEN002


@query(access=public)
async def of_teacher_collected(ctx: QueryCtx, teacher: str) -> list[Course]:
    return [course for course in await ctx.db.query(Course).collect() if course.teacher == teacher]  # expect: PEN002, PEN003


@query(access=public)
async def short_courses(ctx: QueryCtx) -> list[Course]:
    return await ctx.db.query(Course).filter(lambda one: one.opens_at == one.closes_at).take(20)


@query(access=public)
async def odd_prices(ctx: QueryCtx) -> list[Course]:
    return await ctx.db.query(Course).filter(lambda one: one.price % 2 == 1).take(20)


@query(access=public)
async def first_free(ctx: QueryCtx) -> Course | None:
    return await ctx.db.query(Course).filter(lambda one: one.price == 0).first()  # expect: PEN002


@query(access=public)
async def first_free_by_index(ctx: QueryCtx) -> Course | None:
    return await ctx.db.query(Course).with_index(Course.by_published, published=True, price=0).first()


@query(access=public)
async def everything(ctx: QueryCtx) -> list[Course]:
    courses = ctx.db.query(Course)
    if (found := await courses.collect()):  # expect: PEN003
        return found
    return []


@query(access=public)
async def everything_by_price(ctx: QueryCtx) -> list[Course]:
    return await ctx.db.query(Course).with_index(Course.by_published).order("desc").collect()  # expect: PEN003


@query(access=public)
async def lessons_of(ctx: QueryCtx, course: Id[Course]) -> list[Lesson]:
    return await ctx.db.query(Lesson).with_index(Lesson.by_course_number_too, course=course).collect()


@query(access=public)
async def levels(ctx: QueryCtx) -> list[Level]:
    rows = await ctx.db.query(Course).collect()  # penstock: ignore[PEN003] a school has a dozen courses
    return [row.level for row in rows]


@query(access=public)
async def levels_without_reason(ctx: QueryCtx) -> list[Level]:
    rows = await ctx.db.query(Course).collect()  # expect: PEN000, PEN003  # penstock: ignore[PEN003]
    return [row.level for row in rows]


@query(access=public)
async def levels_of_few(ctx: QueryCtx) -> list[Level]:
    rows = await ctx.db.query(Course).take(12)  # expect: PEN000  # penstock: ignore[PEN003] a dozen courses
    return [row.level for row in rows]


@query(access=public)
async def latest_enrolments(ctx: QueryCtx, course: Id[Course]) -> list[Enrolment]:
    return await ctx.db.query(Enrolment).with_index(Enrolment.by_course, course=course).order("desc").take(5)


async def _counted(ctx: QueryCtx) -> int:
    return await ctx.db.query(Course).count()


async def _counted_of_me(ctx: QueryCtx) -> int:
    student = await me(ctx)
    return await ctx.db.query(Course).with_index(Course.by_teacher, teacher=student.email).count()


@app.mutation(access=signed_in)
async def swap(ctx: MutationCtx, course: Id[Course], *, starts: datetime) -> None:
    """A keyword-only argument with a type."""
    await ctx.db.patch(Course, course, opens_at=starts)
