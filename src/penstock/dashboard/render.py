"""Renders pages: Jinja's environment, and the filters that templates share."""

from __future__ import annotations

import json
import re
from collections.abc import Mapping
from datetime import UTC, datetime
from functools import lru_cache
from shlex import quote
from typing import Any
from uuid import UUID

from jinja2 import Environment, PackageLoader, StrictUndefined
from markupsafe import Markup
from pydantic_core import from_json

from penstock.app import App
from penstock.dashboard.charts import last_of
from penstock.dashboard.mask import is_secret, mask, secrets_in, secrets_of
from penstock.dashboard.page import Page, View
from penstock.jobs.job import job_id
from penstock.observe.errortext import trim
from penstock.observe.readable import amount, size_of, span
from penstock.schema.encoder import MASKED
from penstock.schema.ids import is_id

_LIVE = "live_"
_STEP, _NAMED = re.compile(r"\w+"), re.compile(r"""['"](\w+)['"]:""")
_MOMENT = re.compile(r"(\d{4}-\d\d-\d\d[ T]\d\d:\d\d:\d\d(?:\.\d+)?\+00:00)")
_NONE = "-"
_FORMS = {"clock": "%H:%M:%S.{ms:03} UTC", "hour": "%H:%M", "day": "%d %b"}  # of times of a day, and of days


class Pages:
    """The templates, and the pages that are made of them."""

    def __init__(self, more_secrets: str, app: App) -> None:
        self._app = app
        # more names whose values are hidden; `mask` knows the usual ones
        self.secrets = frozenset(name.strip().lower() for name in more_secrets.split(",")) - {""}
        self._jinja = Environment(
            loader=PackageLoader("penstock.dashboard"), autoescape=True, undefined=StrictUndefined, trim_blocks=True
        )
        self._jinja.filters |= {
            "time": _time,
            "moment": lambda text: _time(datetime.fromisoformat(text)),
            "age": lambda value: _time(value, "age"),
            "clock": lambda value: _time(value, "clock"),
            "tick": _time,
            "number": lambda value: f"{value:,}",
            "counted": amount,
            "span": span,
            "size": size_of,
            "masked": self._mask_json,
            "quoted": quote,
            "trimmed": trim,
            "unless_secret": self._unless_secret,
            "beginning": lambda text: from_json(text, allow_partial="trailing-strings"),
            "job_id": lambda text: job_id(UUID(text)),
            "with_times": _with_times,
            "last": last_of,
        }
        self._jinja.tests["row_id"] = lambda text: is_id(text[:-27], text)  # a row has a timeline
        self._jinja.tests["declared"] = lambda name: app.registry.find(name) is not None  # a function with a page
        self._jinja.globals["ui"] = self._jinja.get_template("parts.html").module

    def mask(self, value: Any, of: str | None = None) -> Any:
        """A value without secrets; `of` names the function whose arguments or result it is, or the table of rows."""
        return mask(value, self.secrets if of is None else self._secrets_of(of))

    def _mask_json(self, value: Any, indent: int | None = 2, of: str | None = None) -> str:
        return json.dumps(self.mask(value, of), indent=indent, ensure_ascii=False, default=str)

    def _unless_secret(self, value: Any, name: str, of: str) -> Any:
        """A value, as text, of a column of a table, or of what is in it, such as ``card.number``."""
        names, steps = self._secrets_of(of), [*_STEP.findall(name), *_NAMED.findall(str(value))]
        return MASKED if value is not None and any(is_secret(step, names) for step in steps) else value

    @lru_cache(maxsize=1024)  # noqa: B019 - there is one for as long as the program runs
    def _secrets_of(self, of: str) -> frozenset[str]:
        function = self._app.registry.find(of)
        tables = {of, *(one.task.definition.name for one in self._app.tasks if one.function.name == of)}
        found = [secrets_in(one.table) for one in self._app.definitions() if one.name in tables]
        return self.secrets.union(*found, () if function is None else secrets_of(function))

    def render(self, template: str, values: Mapping[str, Any]) -> str:
        """A whole page."""
        return self._jinja.get_template(template).render(values)

    async def fragments(self, page: Page, view: View, frame: Mapping[str, Any]) -> dict[str, str]:
        """The blocks of a page that change, by name."""
        values = {**frame, **await page.load(view)}
        template = self._jinja.get_template(page.template)
        context = template.new_context(values)
        blocks = {name: block for name, block in template.blocks.items() if name.startswith(_LIVE)}
        return {name.removeprefix(_LIVE): "".join(block(context)) for name, block in blocks.items()}


def _time(value: datetime | None, shown: str = "moment") -> Markup | str:
    """A time in UTC, which the script shows in the reader's zone, as the time of its day, or as an age."""
    if value is None:
        return _NONE
    said = value.astimezone(UTC)
    text = said.strftime(_FORMS.get(shown, "%Y-%m-%d %H:%M:%S UTC")).format(ms=said.microsecond // 1000)
    return Markup(f'<time datetime="{said.isoformat()}" data-shown="{shown}">{text}</time>')  # noqa: S704 - no text of users


def _with_times(text: str) -> Markup:
    """A sentence with its times as `_time` shows them."""
    parts = _MOMENT.split(text)
    shown = [_time(datetime.fromisoformat(part)) if place % 2 else part for place, part in enumerate(parts)]
    return Markup().join(shown)
