"""A chat with a language model: who has asked reads the answer as it comes, and all others see it from the database."""

import asyncio
import os
from collections.abc import AsyncIterator
from datetime import timedelta
from typing import Annotated, Literal

import httpx
from pydantic import BaseModel, Field
from starlette.requests import Request
from starlette.responses import Response, StreamingResponse

from penstock import ActionCtx, App, Id, MutationCtx, QueryCtx, Table, public

app = App()
answers = app.workpool("answers", retry_actions_by_default=True)


class Stream(Table):
    text: str = ""
    status: Literal["pending", "streaming", "done", "error"] = "pending"


class UserMessage(Table):
    prompt: str
    stream: Id[Stream]


class Asked(UserMessage, stored=False):
    response_stream_id: Id[Stream] = Field(alias="responseStreamId")


class Body(BaseModel):
    text: str
    status: str


@app.query(name="messages:listMessages", access=public)
async def list_messages(ctx: QueryCtx) -> list[Asked]:
    return [Asked.from_row(one, responseStreamId=one.stream) for one in await ctx.db.query(UserMessage).take(1000)]


@app.mutation(name="messages:sendMessage", access=public)
async def send_message(ctx: MutationCtx, prompt: str) -> Id[UserMessage]:
    return await ctx.db.insert(UserMessage(prompt=prompt, stream=await ctx.db.insert(Stream())))


@app.mutation(name="messages:clearMessages", access=public)
async def clear_messages(ctx: MutationCtx) -> None:
    for message in await ctx.db.query(UserMessage).take(1000):
        await ctx.db.delete(UserMessage, message.id)


@app.query(name="streaming:getStreamBody", access=public)
async def stream_body(ctx: QueryCtx, stream: Annotated[Id[Stream], Field(alias="streamId")]) -> Body:
    found = await ctx.db.get(Stream, stream)
    return Body(text=found.text, status=found.status) if found else Body(text="", status="error")


@app.http("POST", "/chat-stream", access=public, timeout=timedelta(minutes=10))
async def chat_stream(ctx: ActionCtx, request: Request) -> Response:
    stream = Id[Stream]((await request.json())["streamId"])
    if not await ctx.run_mutation(begin, stream):
        return Response(status_code=205)
    return StreamingResponse(answer(ctx, stream), media_type="text/plain")


async def answer(ctx: ActionCtx, stream: Id[Stream]) -> AsyncIterator[str]:
    try:
        async for part in model(await ctx.run_query(conversation)):
            await ctx.run_mutation(append, stream, part)
            yield part
    except asyncio.CancelledError:  # who has asked has left: a job goes on for the others
        await answers.enqueue(ctx, finish, stream)
        raise
    except httpx.HTTPError:
        await ctx.run_mutation(end, stream, "error")
        return
    await ctx.run_mutation(end, stream, "done")


@app.internal_action
async def finish(ctx: ActionCtx, stream: Id[Stream]) -> None:
    async for _part in answer(ctx, stream):
        pass


@app.internal_mutation
async def begin(ctx: MutationCtx, stream: Id[Stream]) -> bool:
    found = await ctx.db.get(Stream, stream)
    if found is None or found.status != "pending":
        return False
    await ctx.db.patch(Stream, stream, status="streaming")
    return True


@app.internal_mutation
async def append(ctx: MutationCtx, stream: Id[Stream], part: str) -> None:
    found = await ctx.db.get(Stream, stream)
    if found is not None:
        await ctx.db.patch(Stream, stream, text=found.text + part)


@app.internal_mutation
async def end(ctx: MutationCtx, stream: Id[Stream], status: Literal["done", "error"]) -> None:
    await ctx.db.patch(Stream, stream, status=status)


@app.internal_query
async def conversation(ctx: QueryCtx) -> list[str]:
    said = []
    for message in await ctx.db.query(UserMessage).take(1000):
        found = await ctx.db.get(Stream, message.stream)
        said += [message.prompt, found.text if found else ""]
    return said


async def model(said: list[str]) -> AsyncIterator[str]:
    """The answer of the model at the URL of the variable MODEL; without one, an echo."""
    if url := os.environ.get("MODEL"):
        async with httpx.AsyncClient(timeout=60) as http, http.stream("POST", url, json=said) as response:
            async for part in response.raise_for_status().aiter_text():
                yield part
    else:
        for word in said[-2].split()[len(said[-1].split()) :]:
            await asyncio.sleep(0.2)
            yield f"{word} "
