"""Renders pages: Jinja's environment, and the filters that templates share."""

from __future__ import annotations

import json
import re
import sys
from base64 import b64encode
from collections.abc import Mapping
from datetime import UTC, datetime
from functools import lru_cache
from shlex import quote
from typing import Any

import pygal
from jinja2 import Environment, PackageLoader, StrictUndefined
from markupsafe import Markup

from penstock.app import App
from penstock.dashboard.mask import is_secret, masked, secrets_in, secrets_of
from penstock.dashboard.page import Page, View
from penstock.observe.errortext import trimmed
from penstock.observe.readable import counted, size_of, span
from penstock.schema.encoder import MASKED
from penstock.schema.ids import is_id

# pygal finds its plugins, of which there are none here, by a hook of a kind that Python 3.11 warns of at each import.
sys.meta_path[:] = [finder for finder in sys.meta_path if type(finder).__module__ != "pygal"]

_LIVE = "live_"
_STEP, _NAMED = re.compile(r"\w+"), re.compile(r"""['"](\w+)['"]:""")
_MOMENT = re.compile(r"(\d{4}-\d\d-\d\d \d\d:\d\d:\d\d(?:\.\d+)?\+00:00)")
_NONE = "-"
_ROUND = 100  # from which on numbers of charts are whole
_STROKE = "#6b93e8"  # is seen on light and on dark


class Pages:
    """The templates, and the pages that are made of them.

    Attributes:
        secrets: Names whose values are hidden, beside those that `masked` knows.
    """

    def __init__(self, more_secrets: str, app: App) -> None:
        self._app = app
        self.secrets = frozenset(name.strip().lower() for name in more_secrets.split(",")) - {""}
        self._jinja = Environment(
            loader=PackageLoader("penstock.dashboard"), autoescape=True, undefined=StrictUndefined, trim_blocks=True
        )
        self._jinja.filters |= {
            "time": _time,
            "moment": lambda text: _time(datetime.fromisoformat(text)),
            "age": lambda value: _time(value, "age"),
            "clock": lambda value: _time(value, "clock"),
            "number": lambda value: f"{value:,}",
            "counted": counted,
            "span": span,
            "size": size_of,
            "masked": lambda value, indent=2, of=None: _as_json(self.masked(value, of), indent),
            "quoted": quote,
            "trimmed": trimmed,
            "unless_secret": self._unless_secret,
            "with_times": _with_times,
            "chart": lambda values: _chart(tuple(values)),
        }
        self._jinja.tests["row_id"] = lambda text: is_id(text[:-27], text)  # of which there is a timeline
        self._jinja.globals["ui"] = self._jinja.get_template("parts.html").module

    def masked(self, value: Any, of: str | None = None) -> Any:
        """A value without secrets; `of` names the function whose arguments or result it is, or the table of rows."""
        return masked(value, self.secrets if of is None else self._secrets_of(of))

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
        """Those blocks of a page that change, by name."""
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
    text = f"{said:%H:%M:%S}.{said.microsecond // 1000:03}" if shown == "clock" else f"{said:%Y-%m-%d %H:%M:%S}"
    return Markup(f'<time datetime="{said.isoformat()}" data-shown="{shown}">{text} UTC</time>')  # noqa: S704 - no text of users


def _with_times(text: str) -> Markup:
    """A sentence with its times as `_time` shows them."""
    parts = _MOMENT.split(text)
    shown = [_time(datetime.fromisoformat(part)) if place % 2 else part for place, part in enumerate(parts)]
    return Markup().join(shown)


def _as_json(value: Any, indent: int | None) -> str:
    return json.dumps(value, indent=indent, ensure_ascii=False, default=str)


@lru_cache(maxsize=64)  # a chart gets a point in some seconds, and is rendered more often
def _chart(values: tuple[float | None, ...]) -> Markup:
    """A line as an image, and what it shows in words."""
    known = [value for value in values if value is not None]
    if not known:
        return Markup("<small>Nothing yet</small>")
    chart = pygal.Line(css=[], js=[], show_dots=False, range=(0, None))
    chart.uuid = "chart"  # not by chance: equal charts are not sent again
    chart.add_xml_filter(_bare)
    chart.add("", values if len(values) > 1 else values * 2)  # of one value there would be no line
    image = b64encode(chart.render_sparkline(width=320, height=64)).decode()
    last, most = (f"{one:,.0f}" if one >= _ROUND else f"{one:.3g}" for one in (known[-1], max(known)))
    words = f"{last} now, at most {most}"
    return Markup('<img class="chart" alt="" src="data:image/svg+xml;base64,{}"><small>{}</small>').format(image, words)


def _bare(svg: Any) -> Any:
    """A chart without its script, its style and its tooltips, which an image does not use and which are most of it."""
    svg.attrib["preserveAspectRatio"] = "none"
    for parent in list(svg.iter()):
        for child in list(parent):
            if child.tag in {"defs", "desc", "rect", "text", "title"}:
                parent.remove(child)
            elif child.tag == "path":
                child.attrib |= {
                    "fill": "none",
                    "stroke": _STROKE,
                    "stroke-width": "2",
                    "vector-effect": "non-scaling-stroke",
                }
    return svg
