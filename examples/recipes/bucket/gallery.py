"""Pictures in a bucket. ``penstock serve`` runs the program; ``PENSTOCK_FILES=s3://…`` names the bucket."""

from penstock import App, File, Id, MutationCtx, QueryCtx, Table, public

app = App()


class Picture(Table):
    title: str
    file: Id[File]


@app.mutation(access=public)
async def upload_url(ctx: MutationCtx) -> str:
    return await ctx.storage.generate_upload_url()


@app.mutation(access=public)
async def add(ctx: MutationCtx, title: str, file: Id[File]) -> Id[Picture]:
    return await ctx.db.insert(Picture(title=title, file=file))


@app.query(access=public)
async def pictures(ctx: QueryCtx) -> list[str | None]:
    return [await ctx.storage.get_url(one.file) for one in await ctx.db.query(Picture).take(50)]


@app.mutation(access=public)
async def remove(ctx: MutationCtx, picture: Id[Picture]) -> None:
    found = await ctx.db.get(Picture, picture)
    if found is not None:
        await ctx.db.delete(Picture, picture)
        await ctx.storage.delete(found.file)
