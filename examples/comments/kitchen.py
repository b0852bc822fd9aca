"""A cookbook with comments below its recipes, and others in its guest book. Run it with ``python kitchen.py``."""

import asyncio

import comments

from penstock import ActionCtx, App, Id, MutationCtx, QueryCtx, Table, public, signed_in
from penstock.testing import TestApp

app = App()
recipes = app.use(comments.app, name="recipes", expose=[comments.thread])
guest_book = app.use(comments.app, name="guest_book", expose=[comments.thread, comments.add])


class Recipe(Table):
    title: str
    comments: int = 0


@app.mutation(access=public)
async def cook(ctx: MutationCtx, title: str) -> Id[Recipe]:
    return await ctx.db.insert(Recipe(title=title))


@app.mutation(access=signed_in)
async def comment(ctx: MutationCtx, recipe: Id[Recipe], text: str) -> None:
    """Write a comment, and count it: both or neither."""
    found = await ctx.db.get(Recipe, recipe)
    if found is not None:
        await ctx.run_mutation(recipes[comments.add], recipe, text)
        await ctx.db.patch(Recipe, recipe, comments=found.comments + 1)


@app.query(access=public)
async def recipe_page(ctx: QueryCtx, recipe: Id[Recipe]) -> list[str]:
    """The comments below a recipe."""
    shown = await ctx.run_query(recipes[comments.thread], recipe)
    return [f"{one.author}: {one.text}" for one in shown]


@app.internal_mutation
async def set_up(ctx: MutationCtx) -> None:
    await ctx.run_mutation(recipes[comments.moderate_with], ctx.handle_of(is_polite))


@app.internal_action
async def is_polite(ctx: ActionCtx, text: str) -> bool:
    return "horrible" not in text


async def main() -> None:
    """Cook, comment, and see what moderation has left."""
    async with TestApp(app) as kitchen:
        await kitchen.run_mutation(set_up)
        soup, ada = await kitchen.run_mutation(cook, "Soup"), kitchen.with_identity(subject="ada", name="Ada")
        for text in ("Lovely.", "A horrible soup."):
            await ada.run_mutation(comment, soup, text)
        await ada.run_mutation(guest_book[comments.add], "2030", "A horrible kitchen, but good soup.")
        await kitchen.run_until_idle()
        print("Below the soup:", await kitchen.run_query(recipe_page, soup))
        print("In the guest book:", [one.text for one in await kitchen.run_query(guest_book[comments.thread], "2030")])


if __name__ == "__main__":
    asyncio.run(main())
