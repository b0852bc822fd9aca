"""Notes in Flask. ``gunicorn notes:web`` serves them, ``penstock worker`` runs the jobs.

Each request runs in a thread of gunicorn's, or in a greenlet of gevent's. `app.sync` serves both.
"""

from flask import Flask, Response, jsonify, request

from penstock import ActionCtx, App, Id, MutationCtx, QueryCtx, Table, public
from penstock.flask import install

app = App()
web = Flask(__name__)
install(web)
index = app.workpool("index", max_parallelism=2)


class Note(Table):
    text: str
    words: int = 0


@app.mutation(access=public)
async def write(ctx: MutationCtx, text: str) -> Id[Note]:
    note = await ctx.db.insert(Note(text=text))
    await index.enqueue(ctx, count_words, note, text)
    return note


@app.internal_action
async def count_words(ctx: ActionCtx, note: Id[Note], text: str) -> None:
    await ctx.run_mutation(set_words, note, len(text.split()))


@app.internal_mutation
async def set_words(ctx: MutationCtx, note: Id[Note], words: int) -> None:
    await ctx.db.patch(Note, note, words=words)


@app.query(access=public)
async def read(ctx: QueryCtx) -> list[Note]:
    return await ctx.db.query(Note).take(100)


@web.post("/notes")
def write_note() -> tuple[Response, int]:
    return jsonify(app.sync.run_mutation(write, request.form["text"])), 201


@web.get("/notes")
def read_notes() -> Response:
    return jsonify([note.model_dump(mode="json") for note in app.sync.run_query(read)])
