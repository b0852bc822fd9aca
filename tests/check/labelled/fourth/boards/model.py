# convex/model/users.ts and convex/model/boards.ts
import random
import time
import uuid

from penstock import ApplicationError, Id, MutationCtx, QueryCtx

from .schema import Boards, Cards, Comments, Members, Presence, Users


async def getCurrentUser(ctx: QueryCtx) -> Users:
    identity = await ctx.auth.get_user_identity()
    if identity is None:
        raise ApplicationError("Unauthenticated")
    user = await ctx.db.query(Users).with_index(Users.by_token, tokenIdentifier=identity.token_identifier).unique()
    if user is None:
        raise ApplicationError("Unknown user")
    return user


async def ensureHasAccess(ctx: QueryCtx, boardId: Id[Boards]) -> None:
    user = await getCurrentUser(ctx)
    query = ctx.db.query(Members).with_index(Members.by_user_board, userId=user.id, boardId=boardId)
    if await query.unique() is None:
        raise ApplicationError("Unauthorized")


def ensureRole(role: str, needed: str) -> None:
    if role != needed:  # missed: PEN007
        raise ApplicationError("Unauthorized")


def ensureTitle(title: str) -> None:
    if title == "" or len(title) > 200:
        raise ApplicationError("Bad title")


async def loadCards(ctx: QueryCtx, boardId: Id[Boards]) -> list[Cards]:
    return await ctx.db.query(Cards).with_index(Cards.by_board_position, boardId=boardId).take(1000)


async def findUserByName(ctx: QueryCtx, name: str) -> Users | None:
    return await ctx.db.query(Users).filter(lambda q: q.name == name).first()  # expect: PEN002


async def findUser(ctx: QueryCtx, name: str) -> Users | None:
    return await ctx.db.query(Users).with_index(Users.by_name, name=name).first()


async def isTaken(ctx: QueryCtx, name: str) -> bool:
    users = await ctx.db.query(Users).collect()  # expect: PEN003
    return any(user.name == name for user in users)  # expect: PEN002


async def seen(ctx: MutationCtx, boardId: Id[Boards], userId: Id[Users]) -> None:
    query = ctx.db.query(Presence).with_index(Presence.by_board_user, boardId=boardId, userId=userId)
    found = await query.first()
    if found is None:
        await ctx.db.insert(Presence(boardId=boardId, userId=userId, seenAt=ctx.now()))
    else:
        await ctx.db.patch(Presence, found.id, seenAt=ctx.now())


async def online(ctx: QueryCtx, boardId: Id[Boards]) -> list[Presence]:
    return await ctx.db.query(Presence).with_index(Presence.by_board, boardId=boardId).take(50)


def makeSlug(title: str) -> str:
    return f"{title.lower()}-{int(time.time())}"  # expect: PEN014


def makePlainSlug(title: str) -> str:
    return title.lower().replace(" ", "-")


def shuffle(cards: list[Cards]) -> list[Cards]:
    shuffled = list(cards)
    random.shuffle(shuffled)  # expect: PEN014
    return shuffled


def parseKey(text: str) -> str:
    return str(uuid.UUID(text))


async def deleteComments(ctx: MutationCtx, cardId: Id[Cards]) -> None:
    async for comment in ctx.db.query(Comments).with_index(Comments.by_card, cardId=cardId):
        await ctx.db.delete(Comments, comment.id)


def loadComment(ctx: QueryCtx, commentId: Id[Comments]):
    return ctx.db.get(Comments, commentId)
