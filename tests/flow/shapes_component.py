"""A component with a vector index, which test_components uses."""

from __future__ import annotations

from penstock import ActionCtx, App, MutationCtx, Table, VectorIndex

app = App()


class Shape(Table):
    name: str
    form: list[float]

    by_form = VectorIndex("form", dimensions=2)


@app.internal_mutation
async def draw(ctx: MutationCtx, name: str, form: list[float]) -> None:
    await ctx.db.insert(Shape(name=name, form=form))


@app.internal_action
async def nearest(ctx: ActionCtx, form: list[float]) -> list[float]:
    return [round(one.score, 3) for one in await ctx.vector_search(Shape.by_form, form)]
