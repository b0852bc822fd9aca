"""All pages, in the order of the menu."""

from __future__ import annotations

from penstock.dashboard.page import Page
from penstock.dashboard.pages import (
    audit,
    crons,
    data,
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
)

PAGES: tuple[Page, ...] = (
    *overview.PAGES,
    *functions.PAGES,
    *data.PAGES,
    *live.PAGES,
    *work.PAGES,
    *tasks.PAGES,
    *outboxes.PAGES,
    *crons.PAGES,
    *timeline.PAGES,
    *logs.PAGES,
    *schema.PAGES,
    *health.PAGES,
    *audit.PAGES,
)
