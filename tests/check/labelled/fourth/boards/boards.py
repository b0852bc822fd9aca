# convex/boards.ts
from contextlib import suppress
from datetime import timedelta
from typing import Any, Optional

from penstock import ApplicationError, Id, MutationCtx, Page, PaginationOptions, QueryCtx, public, signed_in

from . import cards, model
from .model import ensureHasAccess, ensureRole, getCurrentUser, makePlainSlug, makeSlug, shuffle
from .schema import Boards, Cards, Comments, Members, Users, app, emailPool, exportPool

mutation, query = app.mutation, app.query
internalMutation = app.internal_mutation


@query
async def get(ctx: QueryCtx, boardId: Id[Boards]) -> Boards | None:
    await ensureHasAccess(ctx, boardId)
    return await ctx.db.get(Boards, boardId)


@query
async def getAnonymously(ctx: QueryCtx, boardId: Id[Boards]) -> Boards | None:  # expect: PEN006
    return await ctx.db.get(Boards, boardId)


@query(access=signed_in)
async def getByAnyId(ctx: QueryCtx, boardId: Id[Boards]) -> Boards | None:
    return await ctx.db.get(boardId)  # expect: PEN013


@query
async def listMine(ctx: QueryCtx) -> list[Boards]:
    user = await getCurrentUser(ctx)
    return await ctx.db.query(Boards).with_index(Boards.by_owner_archived, ownerId=user.id, archived=False).collect()


@query
async def listOwned(ctx: QueryCtx) -> list[Boards]:
    user = await getCurrentUser(ctx)
    return await ctx.db.query(Boards).filter(lambda q: q.ownerId == user.id).collect()  # expect: PEN002, PEN003


@query
async def listNotMine(ctx: QueryCtx) -> list[Boards]:
    user = await getCurrentUser(ctx)
    boards = ctx.db.query(Boards).order("desc")
    return [board for board in await boards.take(100) if board.ownerId != user.id]


@query(access=public)
async def listAll(ctx: QueryCtx) -> list[str]:
    boards = await ctx.db.query(Boards).order("desc").collect()  # expect: PEN003
    return [board.title for board in boards]


@query(access=public)
async def listPublic(ctx: QueryCtx, paginationOpts: PaginationOptions) -> Page[Boards]:
    return await ctx.db.query(Boards).filter(lambda q: q.archived == False).paginate(paginationOpts)  # noqa: E712


@query(access=public)
async def listArchived(ctx: QueryCtx) -> list[Boards]:
    return await ctx.db.query(Boards).filter(lambda q: q.archived).take(50)  # expect: PEN002


@query(access=signed_in)
async def roleOf(ctx: QueryCtx, boardId: Id[Boards], userId: Id[Users]) -> str | None:
    members = await ctx.db.query(Members).with_index(Members.by_board, boardId=boardId).collect()
    return next((member.role for member in members if member.userId == userId), None)  # expect: PEN002


@query(access=signed_in)
async def membersOf(ctx: QueryCtx, boardId: Id[Boards]) -> list[Members]:
    return await ctx.db.query(Members).with_index(Members.by_board, board=boardId).collect()  # expect: PEN021


@query(access=signed_in)
async def stats(ctx: QueryCtx, boardId: Id[Boards]) -> dict[str, int]:
    done = await ctx.db.query(Cards).with_index(Cards.by_board_done, boardId=boardId, done=True).count()
    return {"done": done, "members": len(await membersOf(ctx, boardId))}


@query(access=signed_in)
async def statsTwice(ctx: QueryCtx, boardId: Id[Boards]) -> int:
    return len(await ctx.run_query(membersOf, boardId))  # expect: PEN009, PEN008


@query(access=signed_in)
async def random(ctx: QueryCtx, boardId: Id[Boards]) -> list[Cards]:
    return shuffle(await model.loadCards(ctx, boardId))


@query(access=signed_in)
async def shuffled(ctx: QueryCtx, boardId: Id[Boards]) -> list[Cards]:
    rows = await model.loadCards(ctx, boardId)
    ctx.random.shuffle(rows)
    return rows


@mutation
async def create(ctx: MutationCtx, title: str) -> Id[Boards]:
    user = await getCurrentUser(ctx)
    model.ensureTitle(title)
    boardId = await ctx.db.insert(Boards(title=makePlainSlug(title), ownerId=user.id))
    await ctx.db.insert(Members(boardId=boardId, userId=user.id, role="admin"))
    return boardId


@mutation
async def createWithSlug(ctx: MutationCtx, title: str) -> Id[Boards]:
    user = await getCurrentUser(ctx)
    return await ctx.db.insert(Boards(title=makeSlug(title), ownerId=user.id))


@mutation
async def createFor(ctx: MutationCtx, title: str, ownerId: Id[Users]) -> Id[Boards]:  # expect: PEN006
    return await ctx.db.insert(Boards(title=title, ownerId=ownerId))


@mutation(access=signed_in)
async def patch(ctx: MutationCtx, boardId: Id[Boards], fields: Optional[dict]) -> None:  # expect: PEN005
    await ctx.db.patch(Boards, boardId, **(fields or {}))


@mutation(access=signed_in)
async def rename(ctx: MutationCtx, boardId: Id[Boards], title: str) -> None:
    await ensureHasAccess(ctx, boardId)
    await ctx.db.patch(Boards, boardId, title=title)


@mutation(access=signed_in)
async def renameHastily(ctx: MutationCtx, boardId: Id[Boards], title: str) -> None:
    ensureHasAccess(ctx, boardId)  # expect: PEN001
    await ctx.db.patch(Boards, boardId, title=title)


@mutation(access=signed_in)
async def archive(ctx: MutationCtx, boardId: Id[Boards]) -> None:
    await ctx.db.patch(Boards, boardId, isArchived=True)  # expect: PEN021


@mutation(access=signed_in)
async def unarchive(ctx: MutationCtx, boardId: Id[Boards], ownerId: Id[Users]) -> None:
    board = await ctx.db.get(Boards, boardId)
    if board is None:
        raise ApplicationError("Not found")
    if board.ownerId != ownerId:  # expect: PEN007
        raise ApplicationError("Unauthorized")
    await ctx.db.patch(Boards, boardId, archived=False)


@mutation(access=signed_in)
async def unarchiveAs(ctx: MutationCtx, boardId: Id[Boards], role: str) -> None:
    ensureRole(role, "admin")
    await ctx.db.patch(Boards, boardId, archived=False)


@mutation(access=signed_in)
async def unarchiveWell(ctx: MutationCtx, boardId: Id[Boards]) -> None:
    user = await getCurrentUser(ctx)
    board = await ctx.db.get(Boards, boardId)
    if board is None or board.ownerId != user.id:
        raise ApplicationError("Unauthorized")
    await ctx.db.patch(Boards, boardId, archived=False)


@mutation
async def invite(ctx: MutationCtx, boardId: Id[Boards], email: str) -> None:
    await ensureHasAccess(ctx, boardId)
    await emailPool.enqueue(ctx, cards.sendEmail, email, "Welcome")


@mutation
async def inviteMany(ctx: MutationCtx, boardId: Id[Boards], emails: list[str]) -> None:
    await ensureHasAccess(ctx, boardId)
    for email in emails:
        await emailPool.enqueue(ctx, cards.sendEmail, email, "Welcome")


@mutation
async def inviteLoosely(ctx: MutationCtx, boardId: Id[Boards], email: str) -> None:
    await ensureHasAccess(ctx, boardId)
    ctx.scheduler.run_after(timedelta(0), cards.sendEmail, email, "Welcome")  # expect: PEN001


@mutation(access=signed_in)
async def setRole(ctx: MutationCtx, boardId: Id[Boards], userId: Id[Users], role: str) -> None:
    if role not in {"viewer", "admin"}:
        raise ApplicationError("No such role")
    await ensureHasAccess(ctx, boardId)
    rows = ctx.db.query(Members).with_index(Members.by_user_board, userId=userId, boardId=boardId)
    found = await rows.unique()
    if found is not None and found.role != role:
        await ctx.db.patch(Members, found.id, role=role)


@mutation(access=signed_in)
async def remove(ctx: MutationCtx, boardId: Id[Boards]) -> None:
    await ensureHasAccess(ctx, boardId)
    await ctx.scheduler.run_after(timedelta(0), removeCards, boardId)
    await ctx.db.delete(Boards, boardId)


@mutation(access=signed_in)
async def removeLater(ctx: MutationCtx, boardId: Id[Boards]) -> None:
    await ctx.scheduler.run_after(timedelta(days=1), remove, boardId)  # expect: PEN008


@mutation(access=signed_in)
async def removeNow(ctx: MutationCtx, boardId: Id[Boards]) -> None:
    await ctx.run_mutation(removeCards, boardId)  # expect: PEN009
    await ctx.db.delete(Boards, boardId)


@mutation(access=signed_in)
async def removeIfPossible(ctx: MutationCtx, boardId: Id[Boards]) -> None:
    with suppress(ApplicationError):
        await ctx.run_mutation(removeCards, boardId)
    await ctx.db.delete(Boards, boardId)


@internalMutation
async def removeCards(ctx: MutationCtx, boardId: Id[Boards]) -> None:
    page = await ctx.db.query(Cards).with_index(Cards.by_board_position, boardId=boardId).take(100)
    for card in page:
        await model.deleteComments(ctx, card.id)
        await ctx.db.delete(Cards, card.id)
    if len(page) == 100:
        await ctx.scheduler.run_after(timedelta(0), removeCards, boardId)


@mutation(access=signed_in)
async def export(ctx: MutationCtx, boardId: Id[Boards]) -> None:
    await exportPool.with_options(on_complete=remove, context=boardId).enqueue(ctx, cards.render, boardId)  # expect: PEN008


@mutation(access=signed_in)
async def exportAll(ctx: MutationCtx, boardId: Id[Boards]) -> None:
    rows = await ctx.db.query(Cards).with_index(Cards.by_board_position, boardId=boardId).collect()
    context = {"boardId": boardId, "cards": [row.model_dump() for row in rows]}
    await exportPool.with_options(on_complete=exported, context=context).enqueue(ctx, cards.render, boardId)  # expect: PEN020


@mutation(access=signed_in)
async def exportOne(ctx: MutationCtx, boardId: Id[Boards]) -> None:
    first = await ctx.db.query(Cards).with_index(Cards.by_board_position, boardId=boardId).first()
    context = {"boardId": boardId, "first": first.id if first else None}
    await exportPool.with_options(on_complete=exported, context=context).enqueue(ctx, cards.render, boardId)


@internalMutation
async def exported(ctx: MutationCtx, workId: str, result: Any, context: Any) -> None: ...
