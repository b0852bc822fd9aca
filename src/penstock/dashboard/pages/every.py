"""All pages, in the order of the menu."""

from __future__ import annotations

from penstock.dashboard.page import Page
from penstock.dashboard.pages import audit, data, functions, live, overview, work

PAGES: tuple[Page, ...] = (*overview.PAGES, *functions.PAGES, *data.PAGES, *live.PAGES, *work.PAGES, *audit.PAGES)
