# convex/cards.ts, convex/comments.ts and convex/email.ts
import asyncio
import logging
import os
import random
from datetime import datetime, timedelta
from typing import Any

import httpx
from openai import AsyncOpenAI
from penstock import ActionCtx, ApplicationError, Id, Message, MutationCtx, QueryCtx, gt, signed_in

from . import boards, model
from .schema import Boards, Cards, Comments, Users, app, emailPool, webhookPool

log = logging.getLogger("cards")
action, mutation, query = app.action, app.mutation, app.query
internalAction, internalMutation, internalQuery = app.internal_action, app.internal_mutation, app.internal_query
HOOK = "https://hooks.example.com/cards"


@query(access=signed_in)
async def list_(ctx: QueryCtx, boardId: Id[Boards]) -> list[Cards]:
    await model.ensureHasAccess(ctx, boardId)
    return await model.loadCards(ctx, boardId)


@query(access=signed_in)
async def listAfter(ctx: QueryCtx, boardId: Id[Boards], position: float) -> list[Cards]:
    query = ctx.db.query(Cards).with_index(Cards.by_board_position, boardId=boardId, position=gt(position))
    return await query.take(100)


@query(access=signed_in)
async def listDone(ctx: QueryCtx, boardId: Id[Boards]) -> list[Cards]:
    query = ctx.db.query(Cards).with_index(Cards.by_board_position, boardId=boardId, done=True)  # expect: PEN021
    return await query.take(100)


@query(access=signed_in)
async def listAssigned(ctx: QueryCtx, userId: Id[Users]) -> list[Cards]:
    result = []
    async for card in ctx.db.query(Cards):  # expect: PEN002
        if card.assigneeId != userId:
            continue
        result.append(card)
    return result


@query(access=signed_in)
async def listMine(ctx: QueryCtx) -> list[Cards]:
    user = await model.getCurrentUser(ctx)
    return await ctx.db.query(Cards).with_index(Cards.by_assignee, assigneeId=user.id).take(100)


@query(access=signed_in)
async def comments(ctx: QueryCtx, cardId: Id[Cards]) -> list[Comments]:
    return await ctx.db.query(Comments).with_index(Comments.by_card, cardId=cardId).take(100)


@query(access=signed_in)
async def commentsOfMany(ctx: QueryCtx, cardIds: list[Id[Cards]]) -> list[list[Comments]]:
    return list(await asyncio.gather(*[comments(ctx, cardId) for cardId in cardIds]))


@query(access=signed_in)
async def comment(ctx: QueryCtx, commentId: Id[Comments]) -> Comments | None:
    return await model.loadComment(ctx, commentId)


@query(access=signed_in)
async def liked(ctx: QueryCtx, cardId: Id[Cards]) -> list[Comments]:
    query = ctx.db.query(Comments).with_index(Comments.by_card, cardId=cardId)
    return await query.filter(lambda q: q.likes > 0).collect()


@query(access=signed_in)
async def search(ctx: QueryCtx, words: list[str]) -> list[Comments]:
    return await ctx.db.query(Comments).filter(lambda q: all(word in q.body for word in words)).take(10)


@query(access=signed_in)
async def best(ctx: QueryCtx) -> list[Comments]:
    everything = await ctx.db.query(Comments).collect()  # expect: PEN003
    return sorted(everything, key=lambda one: one.likes)[-10:]


@query(access=signed_in)
async def everyId(ctx: QueryCtx) -> list[Id[Comments]]:
    return [one.id async for one in ctx.db.query(Comments)]  # expect: PEN003


@query(access=signed_in)
async def newestIds(ctx: QueryCtx) -> list[Id[Comments]]:
    return [one.id for one in await ctx.db.query(Comments).order("desc").take(50)]


@mutation(access=signed_in)
async def add(ctx: MutationCtx, boardId: Id[Boards], title: str, after: float) -> Id[Cards]:
    return await ctx.db.insert(Cards(boardId=boardId, title=title, position=after + ctx.random.random()))


@mutation(access=signed_in)
async def addAnywhere(ctx: MutationCtx, boardId: Id[Boards], title: str) -> Id[Cards]:
    return await ctx.db.insert(Cards(boardId=boardId, title=title, position=random.random()))  # expect: PEN014


@mutation(access=signed_in)
async def addAny(ctx: MutationCtx, card: Any) -> None:  # expect: PEN005
    await ctx.db.insert(Cards(**card))


@mutation(access=signed_in)
async def addAll(ctx: MutationCtx, boardId: Id[Boards], cards: list[dict]) -> None:  # expect: PEN005
    await ctx.db.insert_many([Cards(boardId=boardId, title=card["title"], position=0) for card in cards])


@mutation(access=signed_in)
async def addTitles(ctx: MutationCtx, boardId: Id[Boards], titles: list[str]) -> None:
    await ctx.db.insert_many([Cards(boardId=boardId, title=title, position=0) for title in titles])


@mutation(access=signed_in)
async def finish(ctx: MutationCtx, cardId: Id[Cards]) -> None:
    card = await ctx.db.get(Cards, cardId)
    if card is None or card.done:
        raise ApplicationError("Not open")
    await ctx.db.patch(Cards, cardId, done=True)
    await webhookPool.enqueue(ctx, callWebhook, cardId)


@mutation(access=signed_in)
async def finishAndCall(ctx: MutationCtx, cardId: Id[Cards]) -> None:
    await ctx.db.patch(Cards, cardId, done=True)
    await callHook(cardId)


@mutation(access=signed_in)
async def finishToday(ctx: MutationCtx, cardId: Id[Cards]) -> None:
    today = datetime.today()  # expect: PEN014
    await ctx.db.patch(Cards, cardId, done=True, dueAt=today)


@mutation(access=signed_in)
async def moveTo(ctx: MutationCtx, cardId: Id[Cards], boardId: Id[Boards]) -> None:
    card = await ctx.db.get(Cards, cardId)
    if card is None or card.boardId == boardId:
        raise ApplicationError("It is there")
    await ctx.db.patch(Cards, cardId, boardId=boardId)


@mutation(access=signed_in)
async def edit(ctx: MutationCtx, commentId: Id[Comments], authorId: Id[Users], body: str) -> None:
    comment = await model.loadComment(ctx, commentId)
    if comment.authorId != authorId:  # expect: PEN007
        raise ApplicationError("Unauthorized")
    await ctx.db.patch(Comments, commentId, body=body)


@mutation(access=signed_in)
async def deleteComment(ctx: MutationCtx, commentId: Id[Comments]) -> None:
    await ctx.db.delete(id=commentId)  # expect: PEN013


@mutation(access=signed_in)
async def like(ctx: MutationCtx, commentId: Id[Comments]) -> None:
    found = await model.loadComment(ctx, commentId)
    await ctx.db.patch(Comments, commentId, likes=found.likes + 1)


@mutation(access=signed_in)
async def likeAll(ctx: MutationCtx, commentIds: list[Id[Comments]]) -> None:
    calls = [like(ctx, commentId) for commentId in commentIds]
    await asyncio.gather(*calls)


@mutation(access=signed_in)
async def unlike(ctx: MutationCtx, commentId: Id[Comments]) -> None:
    found = ctx.db.get(Comments, commentId)  # expect: PEN001
    if found is not None:
        await ctx.db.patch(Comments, commentId, likes=0)


@mutation(access=signed_in)
async def likeEach(ctx: MutationCtx, commentIds: list[Id[Comments]]) -> None:
    for commentId in commentIds:
        await ctx.run_mutation(likeOnce, commentId)  # expect: PEN009


@internalMutation
async def likeOnce(ctx: MutationCtx, commentId: Id[Comments]) -> None:
    await like(ctx, commentId)


# Actions


async def callHook(cardId: str) -> None:
    async with httpx.AsyncClient() as client:  # expect: PEN015
        await client.get(f"{HOOK}?card={cardId}")


@internalAction
async def sendEmail(ctx: ActionCtx, to: str, subject: str) -> None:
    key = os.environ["RESEND_KEY"]
    async with httpx.AsyncClient() as client:
        await client.post("https://api.resend.com/emails", json={"to": to, "subject": subject, "key": key})


@internalAction
async def callWebhook(ctx: ActionCtx, cardId: str) -> None:
    async with httpx.AsyncClient(timeout=10) as client:
        response = await client.post(HOOK, json={"card": cardId})  # expect: PEN017
        response.raise_for_status()


@internalAction(runtime="process")
def render(ctx: ActionCtx, boardId: str) -> str:
    return boardId


@internalQuery
async def getCard(ctx: QueryCtx, cardId: Id[Cards]) -> Cards | None:
    return await ctx.db.get(Cards, cardId)


@internalQuery
async def getBoard(ctx: QueryCtx, boardId: Id[Boards]) -> Boards | None:
    return await ctx.db.get(Boards, boardId)


@internalMutation
async def saveSummary(ctx: MutationCtx, cardId: Id[Cards], text: str) -> None:
    await ctx.db.patch(Cards, cardId, title=text)


@internalMutation
async def saveSummaries(ctx: MutationCtx, cards: dict[str, str]) -> None:
    for cardId, text in cards.items():
        await saveSummary(ctx, cardId, text)


@internalMutation
async def saveAndTell(ctx: MutationCtx, cardId: Id[Cards], text: str, email: str) -> None:
    await saveSummary(ctx, cardId, text)
    await emailPool.enqueue(ctx, sendEmail, email, text)


@action(access=signed_in)
async def summarize(ctx: ActionCtx, cardId: Id[Cards]) -> None:
    card = await ctx.run_query(getCard, cardId)
    answer = await AsyncOpenAI().responses.create(model="small", input=card.title)
    await ctx.run_mutation(saveSummary, cardId, answer.output_text)


@action(access=signed_in)
async def summarizeInMutation(ctx: ActionCtx, cardId: Id[Cards]) -> None:
    card = await ctx.run_query(getCard, cardId)
    board = await ctx.run_query(getBoard, card.boardId)  # expect: PEN011
    answer = await AsyncOpenAI().responses.create(model="small", input=card.title + board.title)
    await ctx.run_mutation(saveSummary, cardId, answer.output_text)


@action(access=signed_in)
async def shorten(ctx: ActionCtx, cardId: Id[Cards]) -> None:
    card = await ctx.run_query(getCard, cardId)
    title = card.title.strip()[:100]
    await ctx.run_mutation(saveSummary, cardId, title)  # expect: PEN011


@action(access=signed_in)
async def shortenAll(ctx: ActionCtx, cardIds: list[Id[Cards]]) -> None:
    for number, cardId in enumerate(cardIds):
        log.info("shorten %s", number)
        await ctx.run_mutation(saveSummary, cardId, "short")  # expect: PEN012


@action(access=signed_in)
async def readAll(ctx: ActionCtx, cardIds: list[Id[Cards]]) -> dict[str, str]:
    return {cardId: (await ctx.run_query(getCard, cardId)).title for cardId in cardIds}  # expect: PEN012


@action(access=signed_in)
async def summarizeAll(ctx: ActionCtx, cardIds: list[Id[Cards]]) -> None:
    openai = AsyncOpenAI()
    for cardId in cardIds:
        answer = await openai.responses.create(model="small", input=cardId)
        await ctx.run_mutation(saveSummary, cardId, answer.output_text)


@action(access=signed_in)
async def summarizeTogether(ctx: ActionCtx, cardIds: list[Id[Cards]]) -> None:
    openai = AsyncOpenAI()
    answers = [await openai.responses.create(model="small", input=one) for one in cardIds]
    await ctx.run_mutation(saveSummaries, {one: got.output_text for one, got in zip(cardIds, answers)})


@action(access=signed_in)
async def removeAll(ctx: ActionCtx, boardId: Id[Boards]) -> None:
    await ctx.run_mutation(boards.remove, boardId)  # expect: PEN008


@action(access=signed_in)
async def removeAllWell(ctx: ActionCtx, boardId: Id[Boards]) -> None:
    await ctx.run_mutation(boards.removeCards, boardId)


@action(access=signed_in)
async def renderBoard(ctx: ActionCtx, boardId: Id[Boards]) -> str:
    return await ctx.run_action(render, boardId)


@action(access=signed_in)
async def emailBoard(ctx: ActionCtx, email: str) -> None:
    await ctx.run_action(sendEmail, email, "Your board")  # expect: PEN010


@action(access=signed_in)
async def emailPlainly(ctx: ActionCtx, email: str) -> None:
    await sendEmail(ctx, email, "Your board")


@action(access=signed_in)
async def emailTwice(ctx: ActionCtx, emails: list[str]) -> None:
    await asyncio.gather(*(ctx.run_action(sendEmail, email, "Twice") for email in emails))  # expect: PEN010


@action
async def openAction(ctx: ActionCtx, email: str) -> None:  # expect: PEN006
    await sendEmail(ctx, email, "Hello")


@action
async def guardedAction(ctx: ActionCtx) -> None:
    identity = await ctx.auth.require()
    await sendEmail(ctx, identity.email or "", "Hello")


@internalAction
async def saveThenTell(ctx: ActionCtx, cardId: str, email: str) -> None:
    await ctx.run_mutation(saveSummary, cardId, "saved")
    log.info("saved %s", cardId)
    await emailPool.enqueue(ctx, sendEmail, email, "saved")  # expect: PEN016


@internalAction
async def saveAndTellWell(ctx: ActionCtx, cardId: str, email: str) -> None:
    await ctx.run_mutation(saveAndTell, cardId, "saved", email)


@internalAction
async def tellOnly(ctx: ActionCtx, email: str) -> None:
    await ctx.scheduler.run_after(timedelta(minutes=5), sendEmail, email, "later")


async def deliver(cardId: str) -> None:
    try:
        await callHook(cardId)
    except Exception:  # expect: PEN019
        log.exception("hook")


async def deliverOrRaise(cardId: str) -> None:
    try:
        await callHook(cardId)
    except httpx.HTTPStatusError as error:
        if error.response.status_code != 409:
            raise


@app.outbox(Cards, name="cards")
async def onCard(ctx: ActionCtx, card: Cards) -> None:
    await deliver(card.id)


@app.outbox(Cards, name="cards strictly")
async def onCardStrictly(ctx: ActionCtx, card: Cards) -> None:
    await deliverOrRaise(card.id)


@app.outbox(Comments, name="comments", batch=50)
async def onComments(ctx: ActionCtx, messages: list[Message[Comments]]) -> None:
    async with httpx.AsyncClient() as client:
        for message in messages:
            try:
                await client.post(HOOK, json={"body": message.row.body}, headers={"Idempotency-Key": message.id})
            except (httpx.HTTPError, Exception):  # expect: PEN019
                log.warning("comment not sent")


@app.cron(timedelta(minutes=1), name="tick")
async def tick(ctx: MutationCtx) -> None:
    due = await ctx.db.query(Cards).with_index(Cards.by_assignee).take(10)
    for card in due:
        if card.dueAt is not None and card.dueAt < ctx.now():
            await webhookPool.enqueue(ctx, callWebhook, card.id)


@app.cron(timedelta(minutes=1), name="poke")
async def poke(ctx: MutationCtx) -> None:
    for user in await ctx.db.query(Users).collect():  # expect: PEN003
        await emailPool.enqueue(ctx, sendEmail, user.email, "poke")


@internalQuery
async def plans(ctx: QueryCtx) -> list[Users]:
    return await ctx.db.query(Users).collect()  # penstock: ignore[PEN003] the trial has at most ten users


@internalQuery
async def planCount(ctx: QueryCtx) -> int:
    return await ctx.db.query(Users).count()  # expect: PEN000  # penstock: ignore[PEN003] the trial has ten users


@internalMutation
async def touch(ctx: MutationCtx, cardId: Id[Cards]) -> None:
    await ctx.db.patch(Cards, cardId, done=datetime.now().hour > 12)  # expect: PEN014, PEN000  # penstock: ignore[PEN014]
