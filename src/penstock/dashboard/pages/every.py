"""All pages, in the order of the menu."""

from __future__ import annotations

from dataclasses import replace

from penstock.dashboard.page import Page
from penstock.dashboard.pages import (
    audit,
    crons,
    data,
    files,
    functions,
    health,
    live,
    logs,
    outboxes,
    overview,
    schema,
    search,
    tasks,
    timeline,
    work,
    workflows,
)  # fmt: skip

_GROUPS = {
    "": (overview,),
    "Work": (work, functions, workflows, tasks, outboxes, crons),
    "Data": (data, files, schema, live),
    "Operations": (search, timeline, logs, health, audit),
}
PAGES: tuple[Page, ...] = tuple(
    replace(page, group=group) for group, modules in _GROUPS.items() for module in modules for page in module.PAGES
)
