"""Actions that load courses from elsewhere."""

from __future__ import annotations

import asyncio
import contextlib
import itertools
import logging
from collections.abc import Iterable
from datetime import timedelta

import httpx
from penstock import ActionCtx as Ctx
from penstock import Id, MutationCtx, QueryCtx, Snooze, WorkId, public, signed_in, sync

from . import enrolling
from .setting import academy as app
from .setting import mails
from .tables import Course, Lesson, Student

log = logging.getLogger(__name__)


@app.internal_query
async def course_of(ctx: QueryCtx, slug: str) -> Course | None:
    return await ctx.db.query(Course).with_index(Course.by_slug, slug=slug).unique()


@app.internal_query
async def teacher_of(ctx: QueryCtx, email: str) -> Student | None:
    return await ctx.db.query(Student).with_index(Student.by_email, email=email).unique()


@app.internal_query
async def course_and_teacher(ctx: QueryCtx, slug: str) -> tuple[Course, Student] | None:
    course = await course_of(ctx, slug)
    teacher = await teacher_of(ctx, course.teacher) if course else None
    return (course, teacher) if course and teacher else None


@app.query(access=public)
async def shown(ctx: QueryCtx, slug: str) -> Course | None:
    return await ctx.run_query(course_of, slug)  # expect: PEN009


@app.query(access=public)
async def shown_plainly(ctx: QueryCtx, slug: str) -> Course | None:
    return await course_of(ctx, slug)


@app.internal_mutation
async def add_course(ctx: MutationCtx, slug: str) -> Id[Course]:
    return await ctx.db.insert(Course(slug=slug, title=slug, teacher=""))


@app.internal_mutation
async def add_courses(ctx: MutationCtx, slugs: list[str]) -> list[Id[Course]]:
    return [await add_course(ctx, slug) for slug in slugs]


@app.internal_mutation
async def add_two(ctx: MutationCtx) -> None:
    await ctx.run_mutation(add_course, "one")  # expect: PEN009
    await add_course(ctx, "two")


async def _add_through_helper(ctx: MutationCtx, slug: str) -> None:
    await ctx.run_mutation(add_course, slug)  # expect: PEN009


@app.internal_mutation
async def add_or_not(ctx: MutationCtx, slug: str) -> None:
    try:
        await ctx.run_mutation(add_course, slug)
    except ValueError:
        await add_course(ctx, slug + "-2")
    await _add_through_helper(ctx, slug)


@app.internal_mutation
async def add_or_silence(ctx: MutationCtx, slug: str) -> None:
    with contextlib.suppress(ValueError):
        await ctx.run_mutation(add_course, slug)


@app.internal_mutation
async def add_if_read(ctx: MutationCtx, slug: str) -> None:
    try:
        found = await ctx.run_query(course_of, slug)  # expect: PEN009
    except ValueError:
        found = None
    if found is None:
        await add_course(ctx, slug)


async def page_of(ctx: Ctx, url: str) -> str:
    async with httpx.AsyncClient() as client:
        return (await client.get(url)).text


@app.internal_action
async def read_page(ctx: Ctx, url: str) -> str:
    return await page_of(ctx, url)


@app.internal_action(runtime="process")
def parse(ctx: sync.ActionCtx, text: str) -> list[str]:
    return text.split()


@app.internal_action(runtime="process")
def parse_all(ctx: sync.ActionCtx, texts: list[str]) -> list[list[str]]:
    return [ctx.run_action(parse, text) for text in texts]  # expect: PEN010


@app.internal_action
def hash_of(ctx: sync.ActionCtx, text: str) -> int:
    return hash(text)


@app.internal_action
def hash_of_two(ctx: sync.ActionCtx, one: str, two: str) -> int:
    return hash_of(ctx, one) ^ ctx.run_action(hash_of, two)  # expect: PEN010


@app.internal_action
async def read_site(ctx: Ctx, urls: list[str]) -> list[str]:
    return await asyncio.gather(*(ctx.run_action(read_page, url) for url in urls))  # expect: PEN010


@app.internal_action
async def read_site_plainly(ctx: Ctx, urls: list[str]) -> list[str]:
    return await asyncio.gather(*[page_of(ctx, url) for url in urls])


@app.internal_action
async def read_and_parse(ctx: Ctx, url: str) -> list[str]:
    text = await page_of(ctx, url)
    await ctx.run_action(hash_of, text)
    return await ctx.run_action(parse, text)


@app.internal_action
async def report(ctx: Ctx, slug: str) -> str:
    course = await ctx.run_query(course_of, slug)
    if course is None:
        return "none"
    teacher = await ctx.run_query(teacher_of, course.teacher)  # expect: PEN011
    return f"{course.title} by {teacher.name if teacher else 'nobody'}"


@app.internal_action
async def report_of_one(ctx: Ctx, slug: str) -> str:
    if (both := await ctx.run_query(course_and_teacher, slug)) is None:
        return "none"
    return both[0].title + both[1].name


@app.internal_action
async def report_at_once(ctx: Ctx, slug: str, email: str) -> None:
    await asyncio.gather(ctx.run_query(course_of, slug), ctx.run_query(teacher_of, email))  # expect: PEN011


@app.internal_action
async def report_either(ctx: Ctx, slug: str, email: str | None) -> bool:
    if email is None:
        return await ctx.run_query(course_of, slug) is not None
    return await ctx.run_query(teacher_of, email) is not None


@app.internal_action
async def report_or(ctx: Ctx, slug: str, email: str | None) -> object:
    if email:
        found: object = await ctx.run_query(teacher_of, email)
    else:
        found = await ctx.run_query(course_of, slug)
    return found


@app.internal_action
async def renew(ctx: Ctx, slug: str) -> None:
    course = await ctx.run_query(course_of, slug)
    if course:
        await ctx.run_mutation(add_course, course.slug + "-new")  # expect: PEN011


@app.internal_action
async def translate(ctx: Ctx, slug: str) -> None:
    course = await ctx.run_query(course_of, slug)
    title = await page_of(ctx, f"https://translate.example.com/{course.title if course else ''}")
    await ctx.run_mutation(add_course, title)


@app.internal_action
async def load(ctx: Ctx, slugs: list[str]) -> None:
    for slug in slugs:
        await ctx.run_mutation(add_course, slug)  # expect: PEN012


@app.internal_action
async def load_by_number(ctx: Ctx, count: int) -> list[Id[Course]]:
    return [await ctx.run_mutation(add_course, f"course {number}") for number in range(count)]  # expect: PEN012


@app.internal_action
async def load_together(ctx: Ctx, slugs: list[str]) -> None:
    await asyncio.gather(*(ctx.run_mutation(add_course, slug) for slug in slugs))  # expect: PEN012


@app.internal_action
async def load_at_once(ctx: Ctx, slugs: list[str]) -> None:
    await ctx.run_mutation(add_courses, slugs)


@app.internal_action
async def look_up(ctx: Ctx, slugs: list[str]) -> dict[str, bool]:
    return {slug: await ctx.run_query(course_of, slug) is not None for slug in slugs}  # expect: PEN012


@app.internal_action
async def load_pages(ctx: Ctx, urls: list[str]) -> None:
    for url in urls:
        text = await page_of(ctx, url)
        await ctx.run_mutation(add_course, text)


@app.internal_action
async def load_pieces(ctx: Ctx, slugs: list[str]) -> None:
    rest: Iterable[str] = iter(slugs)
    while piece := list(itertools.islice(rest, 500)):
        await ctx.run_mutation(add_courses, piece)


@app.internal_mutation
async def clean_page(ctx: MutationCtx, cursor: str | None) -> str | None:
    page = await ctx.db.query(Lesson).paginate(cursor=cursor, num_items=200)
    for lesson in page.page:
        await ctx.db.patch(Lesson, lesson.id, body=lesson.body.strip())
    return None if page.is_done else page.continue_cursor


@app.internal_action
async def clean(ctx: Ctx) -> None:
    cursor = await ctx.run_mutation(clean_page, None)
    while cursor is not None:
        cursor = await ctx.run_mutation(clean_page, cursor)


@app.internal_action
async def clean_forever(ctx: Ctx) -> None:
    cursor = None
    while True:
        cursor = await ctx.run_mutation(clean_page, cursor)
        if cursor is None:
            break


@app.internal_action
async def load_patiently(ctx: Ctx, slug: str) -> None:
    for _ in range(3):
        try:
            await ctx.run_mutation(add_course, slug)
            return
        except ConnectionError:
            await asyncio.sleep(1)


async def _add_one(ctx: Ctx, slug: str) -> None:
    await ctx.run_mutation(add_course, slug)


@app.internal_action
async def load_by_helper(ctx: Ctx, slugs: list[str]) -> None:
    for slug in slugs:
        await _add_one(ctx, slug)  # expect: PEN012


@app.internal_action
async def tell_after(ctx: Ctx, slug: str, email: str) -> WorkId:
    await ctx.run_mutation(add_course, slug)
    return await mails.enqueue(ctx, enrolling.welcome, email)  # expect: PEN016


@app.internal_action
async def schedule_after(ctx: Ctx, slug: str) -> None:
    course = await ctx.run_mutation(add_course, slug)
    await ctx.scheduler.run_after(timedelta(0), forget_course, course)  # expect: PEN016


@app.internal_action
async def schedule_some_after(ctx: Ctx, slug: str, loud: bool) -> None:
    course = await ctx.run_mutation(add_course, slug)
    if loud:
        pool = mails.with_options(retry=False)
        await pool.enqueue(ctx, enrolling.welcome, course)  # expect: PEN016


@app.internal_action
async def tell_after_page(ctx: Ctx, slug: str, email: str) -> None:
    await ctx.run_mutation(add_course, slug)
    if "open" in await page_of(ctx, f"https://courses.example.com/{slug}"):
        await mails.enqueue(ctx, enrolling.welcome, email)


@app.internal_action
async def tell_only(ctx: Ctx, email: str) -> None:
    if ctx.now().hour < 8:
        raise Snooze(timedelta(hours=1))
    await mails.enqueue(ctx, enrolling.welcome, email)


@app.internal_action
async def tell_after_reading(ctx: Ctx, slug: str, email: str) -> None:
    if await ctx.run_query(course_of, slug):
        await mails.enqueue(ctx, enrolling.welcome, email)


@app.internal_mutation
async def forget_course(ctx: MutationCtx, course: Id[Course]) -> None:
    await ctx.db.delete(Course, course)


@app.internal_mutation
async def add_and_tell(ctx: MutationCtx, slug: str, email: str) -> None:
    await add_course(ctx, slug)
    await mails.enqueue(ctx, enrolling.welcome, email)


@app.action(access=signed_in)
async def preview(ctx: Ctx, slug: str) -> Course | None:
    return await ctx.run_query(shown, slug)  # expect: PEN008


@app.action
async def ping(ctx: Ctx) -> str:  # expect: PEN006
    log.info("ping")
    return "pong"


@app.action
async def who(ctx: Ctx) -> str:
    identity = await ctx.auth.get_user_identity()
    return identity.subject if identity else "nobody"
