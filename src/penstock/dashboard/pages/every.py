"""All pages, in the order of the menu."""

from __future__ import annotations

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
    tasks,
    timeline,
    work,
    workflows,
)  # fmt: skip

_IN_ORDER = (
    overview,
    functions,
    data,
    files,
    live,
    work,
    workflows,
    tasks,
    outboxes,
    crons,
    timeline,
    logs,
    schema,
    health,
    audit,
)
PAGES: tuple[Page, ...] = tuple(page for module in _IN_ORDER for page in module.PAGES)
