"""Answers over one's own documents: passages are found by meaning, and a language model answers from them.

Both models are passed in: `use` takes a function that embeds texts, and one that answers. Here they are small ones of
our own, so that the program runs anywhere; pass in calls of the models that you use. Run it with ``python answers.py``,
on a SQLite file of its own, or on an empty database that DATABASE_URL names. On SQLite it needs numpy,
``pip install 'penstock-backend[vectors]'``, and on PostgreSQL the extension pgvector.
"""

import asyncio
import os
import re
import tempfile
from collections.abc import Awaitable, Callable
from hashlib import blake2s
from typing import NamedTuple

from penstock import ActionCtx, App, Id, Index, MutationCtx, QueryCtx, Table, VectorIndex, public

DIMENSIONS = 256
NEAR = 0.2  # the least score of a passage that may help

Embed = Callable[[list[str]], Awaitable[list[list[float]]]]
Answer = Callable[[str, list[str]], Awaitable[str]]


class Models(NamedTuple):
    embed: Embed
    answer: Answer


class Document(Table):
    shelf: str
    title: str
    text: str


class Passage(Table):
    document: Id[Document]
    shelf: str
    text: str
    embedding: list[float]

    by_document = Index("document")
    by_meaning = VectorIndex("embedding", dimensions=DIMENSIONS, filters=("shelf",))


class Reply(NamedTuple):
    text: str
    sources: list[str]


def passages_of(text: str) -> list[str]:
    """The paragraphs of a text."""
    return [part.strip() for part in text.split("\n\n") if part.strip()]


app = App()
models: list[Models] = []


def use(embed: Embed, answer: Answer) -> None:
    """Have the program embed texts with a model, and answer with another one."""
    models[:] = [Models(embed, answer)]


@app.internal_mutation
async def store(ctx: MutationCtx, document: Document, parts: list[str], vectors: list[list[float]]) -> Id[Document]:
    stored = await ctx.db.insert(document)
    await ctx.db.insert_many(
        Passage(document=stored, shelf=document.shelf, text=part, embedding=vector)
        for part, vector in zip(parts, vectors, strict=True)
    )
    return stored


@app.internal_query
async def read(ctx: QueryCtx, ids: list[Id[Passage]]) -> list[tuple[str, str]]:
    found = []
    for passage_id in ids:
        passage = await ctx.db.get(Passage, passage_id)
        document = passage and await ctx.db.get(Document, passage.document)
        if passage and document:
            found.append((document.title, passage.text))
    return found


@app.action(access=public)
async def add(ctx: ActionCtx, shelf: str, title: str, text: str) -> Id[Document]:
    parts = passages_of(text)
    return await ctx.run_mutation(
        store, Document(shelf=shelf, title=title, text=text), parts, await models[0].embed(parts)
    )


@app.action(access=public)
async def ask(ctx: ActionCtx, shelf: str, question: str) -> Reply:
    (vector,) = await models[0].embed([question])
    hits = await ctx.vector_search(Passage.by_meaning, vector, limit=3, shelf=shelf)
    found = await ctx.run_query(read, [hit.id for hit in hits if hit.score >= NEAR])
    if not found:
        return Reply("No document tells.", [])
    titles = dict.fromkeys(title for title, _ in found)
    return Reply(await models[0].answer(question, [text for _, text in found]), [*titles])


# ----- small models


async def embed_words(texts: list[str]) -> list[list[float]]:
    """Embed texts by the words that they have: each word counts in one place of the vector."""
    vectors = []
    for text in texts:
        vector = [0.0] * DIMENSIONS
        for word in re.findall(r"[a-z]{4,}", text.lower()) or ["nothing"]:
            vector[blake2s(word[:5].encode()).digest()[0] % DIMENSIONS] += 1.0
        vectors.append(vector)
    return vectors


async def quote(_question: str, passages: list[str]) -> str:
    """Answer with the best passage."""
    return passages[0]


HANDBOOK = """Holidays are 30 days a year. Ask your lead two weeks before you leave.

The coffee machine is cleaned every Friday, by whoever comes last.

A laptop that was stolen is reported to security at once, also at night."""
GARDEN = "Tomatoes need six hours of sunshine, and water every morning."


async def main() -> None:
    use(embed_words, quote)
    with tempfile.TemporaryDirectory() as folder:
        async with app.open(os.environ.get("DATABASE_URL") or f"sqlite:///{folder}/answers.db") as backend:
            await backend.run_action(add, "office", "The handbook", HANDBOOK)
            await backend.run_action(add, "home", "The garden", GARDEN)
            for shelf, question in (
                ("office", "How many days are my holidays in a year?"),
                ("office", "My laptop was stolen, who is to be told?"),
                ("office", "How much water and sunshine do tomatoes need?"),
                ("home", "How much water and sunshine do tomatoes need?"),
            ):
                reply = await backend.run_action(ask, shelf, question)
                print(f"{question}\n  {reply.text} {reply.sources}")


if __name__ == "__main__":
    asyncio.run(main())
