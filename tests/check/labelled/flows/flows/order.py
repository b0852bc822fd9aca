"""Workflows that go over sets, and that change globals."""

import asyncio
from collections import Counter, defaultdict, deque
from typing import Any

from penstock import App, MutationCtx, QueryCtx, WorkflowCtx

app = App()
LIMIT = 3
cache: dict[str, str] = {}
seen = set[str]()
history = []
counts = Counter[str]()
groups = defaultdict(list)
latest = deque(maxlen=3)
total = 0
settings = type("Settings", (), {"limit": 1})()


class Totals:
    runs = 0


@app.internal_mutation
async def keep(ctx: MutationCtx, what: str) -> str:
    return what


@app.internal_query
async def look(ctx: QueryCtx) -> list[str]:
    return []


# ----- sets


@app.workflow
async def wrong_sets(ctx: WorkflowCtx, names: list[str], tags: set[str], kinds: frozenset[str]) -> list[str]:
    for name in {"a", "b"}:  # expect: PEN025
        await ctx.run_mutation(keep, name)
    for name in set(names):  # expect: PEN025
        await ctx.run_mutation(keep, name)
    for tag in tags:  # expect: PEN025
        await ctx.run_mutation(keep, tag)
    unique = frozenset(names)
    found = [await ctx.run_mutation(keep, one) for one in unique]  # expect: PEN025
    await asyncio.gather(*(ctx.run_mutation(keep, one) for one in tags | unique))  # expect: PEN025
    first = next(iter(kinds))  # expect: PEN025
    listed = list(tags - unique)  # expect: PEN025
    left = {name for name in names if name != "a"}
    while left:
        await ctx.run_mutation(keep, left.pop())  # expect: PEN025
    text = ", ".join(tags)  # expect: PEN025
    by_name = {one: len(one) for one in tags.union(names)}  # expect: PEN025
    for number, one in enumerate(set(names)):  # expect: PEN025
        await ctx.run_mutation(keep, f"{number}{one}")
    print(*kinds)  # expect: PEN025
    one, *others = tags  # expect: PEN025
    return [*found, first, *listed, text, *by_name, one, *others]


@app.workflow
async def right_sets(ctx: WorkflowCtx, names: list[str], tags: set[str], numbers: set[int]) -> list[str]:
    for name in sorted(set(names)):
        await ctx.run_mutation(keep, name)
    for name in dict.fromkeys(names):
        await ctx.run_mutation(keep, name)
    if "a" in tags and len(tags) > 1:
        tags.add("c")
    found = sorted(tag.upper() for tag in tags)
    count = sum(1 for tag in tags if tag)
    is_long = any(len(tag) > 3 for tag in tags)
    last = max(tags)
    for number in numbers:
        await ctx.run_mutation(keep, str(number))
    for number in {1, 2, 3}:
        await ctx.run_mutation(keep, str(number))
    both = {*tags, *names} & tags
    upper = {tag.upper() for tag in both}
    names.pop()
    text = ", ".join(sorted(upper))
    by_name = {one: 1 for one in names}
    return [*found, f"{count}{is_long}{last}{text}", *by_name]


# ----- globals


@app.workflow
async def wrong_globals(ctx: WorkflowCtx, name: str) -> None:
    global total
    total += 1  # expect: PEN026
    cache[name] = await ctx.run_mutation(keep, name)  # expect: PEN026
    seen.add(name)  # expect: PEN026
    history.append(name)  # expect: PEN026
    counts[name] += 1  # expect: PEN026
    groups[name].append(name)  # expect: PEN026
    latest.appendleft(name)  # expect: PEN026
    settings.limit = 2  # expect: PEN026
    Totals.runs += 1  # expect: PEN026
    del cache[name]  # expect: PEN026
    cache.update(a=name)  # expect: PEN026
    remember(name)


def remember(name: str) -> None:
    cache.setdefault(name, name)  # expect: PEN026
    history.clear()  # expect: PEN026


@app.workflow
async def right_globals(ctx: WorkflowCtx, name: str, given: dict[str, Any]) -> list[str]:
    found: list[str] = []
    found.append(name)
    cache = {}
    cache[name] = name
    given["a"] = 1
    counts = Counter(found)
    counts[name] += 1
    total = LIMIT + 1
    total += 1

    def note(what: str) -> None:
        nonlocal total
        total += 1
        found.append(what)

    note("a")
    groups: dict[str, list[str]] = defaultdict(list)
    groups[name].append(name)
    for history in [[1], [2]]:
        history.append(3)
    kept = [await ctx.run_mutation(keep, one) for one in found]
    kept.sort()
    app.events.get("a")
    return kept
