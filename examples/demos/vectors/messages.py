"""Foods that are found by what their descriptions mean, for some cuisines or for all."""

import hashlib
from typing import Annotated

from pydantic import BaseModel, Field

from penstock import ActionCtx, App, Id, MutationCtx, QueryCtx, Table, VectorHit, VectorIndex, public

DIMENSIONS = 64
app = App()


class Food(Table):
    description: str
    cuisine: str
    embedding: list[float]

    by_embedding = VectorIndex("embedding", dimensions=DIMENSIONS, filters=("cuisine",))


class Shown(BaseModel):
    id: Annotated[Id[Food], Field(serialization_alias="_id")]
    description: str
    cuisine: str


class Hit(Shown):
    score: Annotated[float, Field(serialization_alias="_score")]


async def embed(text: str) -> list[float]:
    """Stands in for an embedding model: texts with the same words have near vectors."""
    found = [0.01] * DIMENSIONS
    for word in text.lower().split():
        found[hashlib.sha256(word.encode()).digest()[0] % DIMENSIONS] += 1.0
    return found


@app.action(name="foods:insert", access=public)
async def insert(ctx: ActionCtx, cuisine: str, description: str) -> None:
    await ctx.run_mutation(insert_row, cuisine, description, await embed(description))


@app.internal_mutation
async def insert_row(ctx: MutationCtx, cuisine: str, description: str, embedding: list[float]) -> None:
    await ctx.db.insert(Food(cuisine=cuisine, description=description, embedding=embedding))


@app.query(name="foods:list", access=public)
async def list_foods(ctx: QueryCtx) -> list[Shown]:
    found = await ctx.db.query(Food).order("desc").take(10)
    return [Shown(id=food.id, description=food.description, cuisine=food.cuisine) for food in found]


@app.action(name="search:similarFoods", access=public)
async def similar_foods(ctx: ActionCtx, query: str, cuisines: list[str] | None = None) -> list[Hit]:
    filters = {} if cuisines is None else {"cuisine": cuisines}
    hits = await ctx.vector_search(Food.by_embedding, await embed(query), limit=16, **filters)
    return await ctx.run_query(foods_of, hits)


@app.internal_query
async def foods_of(ctx: QueryCtx, hits: list[VectorHit[Food]]) -> list[Hit]:
    found = [(hit, await ctx.db.get(Food, hit.id)) for hit in hits]
    return [
        Hit(id=food.id, score=hit.score, description=food.description, cuisine=food.cuisine)
        for hit, food in found
        if food is not None
    ]
