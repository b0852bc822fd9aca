"""Erase a person. Jobs and messages name persons by their ids, and read the row when they run.

``penstock serve --services`` runs the program, and ``penstock run erase email=ada@example.com`` erases.
"""

from datetime import timedelta

from penstock import ActionCtx, App, Id, Index, Message, MutationCtx, QueryCtx, Table, TaskCtx, public

app = App(job_status_ttl=timedelta(days=1).total_seconds())
mail = app.workpool("mail", max_parallelism=2)


class Person(Table):
    email: str
    subscribed: bool = True

    by_email = Index("email", unique=True)


@app.mutation(access=public)
async def sign_up(ctx: MutationCtx, email: str) -> None:
    person = await ctx.db.insert(Person(email=email))
    letters = mail.with_options(concurrency_key=person)
    await letters.enqueue(ctx, write_to, person, "welcome")
    await letters.with_options(run_at=ctx.now() + timedelta(days=30)).enqueue(ctx, write_to, person, "a month")


@app.internal_query
async def email_of(ctx: QueryCtx, person: Id[Person]) -> str | None:
    found = await ctx.db.get(Person, person)
    return found.email if found else None


@app.internal_action
async def write_to(ctx: ActionCtx, person: Id[Person], subject: str) -> None:
    email = await ctx.run_query(email_of, person)
    if email is not None:  # erased meanwhile
        print(f"To {email}: {subject}")


@app.reactive_task(Person, watch=("subscribed",))  # the values of watched fields are kept with the task's runs
async def greet(ctx: TaskCtx[Person]) -> None:
    person = await ctx.get_document()
    print(f"{person.id} is here")


@app.outbox(Person, on=("insert", "delete"))
async def to_newsletter(ctx: ActionCtx, message: Message[Person]) -> None:
    """Tell the newsletter of each person, and of each that is gone: it has to erase too."""
    print(f"newsletter: {message.kind} {message.key}")


@app.internal_mutation
async def erase(ctx: MutationCtx, email: str) -> bool:
    person = await ctx.db.query(Person).with_index(Person.by_email, email=email).unique()
    if person is None:
        return False
    await mail.cancel_all(ctx, concurrency_key=person.id)
    await ctx.db.delete(Person, person.id)
    return True
