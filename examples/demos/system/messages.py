"""What penstock keeps by itself, for a page of administrators: jobs that wait, and files."""

from datetime import timedelta
from typing import Annotated, Any, Literal

from pydantic import BaseModel, Field

from penstock import App, File, Id, JobId, JobStatus, MutationCtx, QueryCtx, Table, public

app = App()


class Message(Table):
    author: str
    body: str = ""
    format: Literal["text", "image"] = "text"
    picture: Id[File] | None = None


class Upload(Table):
    author: str
    file: Id[File]


class Shown(Message, stored=False):
    url: str | None


class UploadedFile(File):
    author: str


class ScheduledSend(BaseModel):
    id: Annotated[JobId, Field(serialization_alias="_id")]
    args: list[dict[str, Any]]
    state: dict[str, str]
    due: Annotated[float, Field(serialization_alias="scheduledTime")]


@app.query(name="messages:list", access=public)
async def list_messages(ctx: QueryCtx) -> list[Shown]:
    messages = await ctx.db.query(Message).take(1000)
    return [Shown.from_row(one, url=one.picture and await ctx.storage.get_url(one.picture)) for one in messages]


@app.mutation(name="messages:generateUploadUrl", access=public)
async def generate_upload_url(ctx: MutationCtx) -> str:
    return await ctx.storage.generate_upload_url()


@app.mutation(name="messages:sendImage", access=public)
async def send_image(ctx: MutationCtx, file: Annotated[Id[File], Field(alias="storageId")], author: str) -> None:
    await ctx.db.insert(Message(author=author, format="image", picture=file))
    await ctx.db.insert(Upload(author=author, file=file))


@app.mutation(name="messages:sendMessage", access=public)
async def send_message(ctx: MutationCtx, body: str, author: str) -> None:
    await ctx.db.insert(Message(author=author, body=body))


@app.internal_mutation
async def send_later(ctx: MutationCtx, body: str, author: str) -> None:
    await send_message(ctx, body, author)


@app.mutation(name="messages:scheduleMessage", access=public)
async def schedule_message(ctx: MutationCtx, delay: float, body: str, author: str) -> JobId:
    return await ctx.scheduler.run_after(timedelta(seconds=delay), send_later, body, author)


@app.mutation(name="admin:cancelMessage", access=public)
async def cancel_message(ctx: MutationCtx, job: Annotated[JobId, Field(alias="jobId")]) -> None:
    await ctx.scheduler.cancel(job)


@app.query(name="admin:listScheduledSends", access=public)
async def scheduled_sends(ctx: QueryCtx) -> list[ScheduledSend]:
    def shown(job: JobStatus) -> ScheduledSend:
        due, state = job.run_at.timestamp() * 1000, {"kind": job.state.value}
        return ScheduledSend(id=job.id, args=[job.args], state=state, due=due)

    return [shown(job) for job in await ctx.jobs.list(function=send_later, state="pending")]


@app.query(name="admin:listFiles", access=public)
async def list_files(ctx: QueryCtx) -> list[UploadedFile]:
    uploads = await ctx.db.query(Upload).take(1000)
    found = [(upload, await ctx.storage.get_metadata(upload.file)) for upload in uploads]
    return [UploadedFile(**dict(file), author=upload.author) for upload, file in found if file is not None]


@app.query(name="admin:getFileUrl", access=public)
async def file_url(ctx: QueryCtx, file: Annotated[Id[File], Field(alias="id")]) -> str | None:
    return await ctx.storage.get_url(file)
