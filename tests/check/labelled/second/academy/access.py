"""Who may do what: helpers that ask ctx.auth, and guards."""

from __future__ import annotations

from typing import TYPE_CHECKING

from penstock import ApplicationError, Id, QueryCtx

from .tables import Course, Student

if TYPE_CHECKING:
    from penstock import MutationCtx


async def me(ctx: QueryCtx) -> Student:
    identity = await ctx.auth.require()
    found = await ctx.db.query(Student).with_index(Student.by_email, email=identity.email).unique()
    if found is None:
        raise ApplicationError("Sign up first.")
    return found


async def own_course(ctx: MutationCtx, course: Id[Course]) -> Course:
    student = await me(ctx)
    found = await ctx.db.get(Course, course)
    if found is None or found.teacher != student.email:
        raise ApplicationError("This is not your course.")
    return found


async def is_teacher(ctx: QueryCtx, course: Id[Course]) -> bool:
    found = await ctx.db.get(Course, course)
    return found is not None and found.teacher == (await ctx.auth.require()).subject


def must_be_same(one: str, other: str) -> None:
    if one != other:
        raise ApplicationError("Not yours.")
