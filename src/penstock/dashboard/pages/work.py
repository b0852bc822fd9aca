"""Work: pools with their limits and queues, jobs, and one job with its attempts."""

from __future__ import annotations

from penstock.dashboard.page import Page

PAGES: tuple[Page, ...] = ()
