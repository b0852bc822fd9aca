"""The work of the clinic. It knows Django's table, and nothing of Django."""

from penstock import ActionCtx, App, ApplicationError, Id, MutationCtx, TaskCtx, UserTable, signed_in

app = App()
mail = app.workpool("mail", max_parallelism=5)


class Visit(UserTable, source="clinic_visit", key="id", managed=False):
    id: int
    owner_id: int
    email: str
    paid: bool


@app.internal_action
async def confirm(ctx: ActionCtx, email: str) -> str:
    return f"To {email}: see you soon."


@app.mutation(access=signed_in)
async def pay(ctx: MutationCtx, visit: Id[Visit]) -> Visit:
    user, found = await ctx.auth.require(), await ctx.db.get(Visit, visit)
    if found is None or str(found.owner_id) != user.subject:
        raise ApplicationError("You have no such visit.", status=404)
    if found.paid:
        raise ApplicationError("It is paid already.", status=409)
    return await ctx.db.patch(Visit, visit, paid=True)


@app.reactive_task(Visit, filter=lambda row: row.paid)
async def thank(ctx: TaskCtx[Visit]) -> None:
    """Run for each visit that is paid, whether the API, the admin or a shell has written it."""
    visit = await ctx.get_document()
    print(f"To {visit.email}: thank you!")
