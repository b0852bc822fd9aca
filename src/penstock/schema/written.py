"""Where tables are declared: the file and the line, for errors.

Two tables of one name in one module are refused here, as the code that declares them is still running.
"""

from __future__ import annotations

import inspect
import linecache
import re
from collections.abc import Iterator
from contextlib import contextmanager
from traceback import walk_stack
from types import CodeType
from weakref import ref

from penstock.dataclass import dataclass
from penstock.errors import DeclarationError
from penstock.observe.places import place


@dataclass(frozen=True, slots=True)
class Written:
    body: ref[CodeType] | None  # of the module, if its own code declares the class
    file: str
    line: int

    def place(self, name: str = "") -> str:
        """The place of the class, or of what its body gives this name."""
        block = inspect.getblock(linecache.getlines(self.file)[self.line - 1 :] or [""])
        found = (number for number, text in enumerate(block) if name and re.match(rf"\s+{name}\s*[:=]", text))
        return place(self.file, self.line + next(found, 0))


def place_of_class(cls: type) -> Written | None:
    """The place of a class, whose body has just run. Two tables of one name in one module are refused."""
    frames = [one for one, _line in walk_stack(None) if one.f_globals.get("__name__") == cls.__module__]
    body = next((one for one in frames if one.f_code.co_name == "<module>"), None)
    if not frames:
        return None
    written = Written(body and ref(body.f_code), frames[0].f_code.co_filename, frames[0].f_lineno)
    if body is None or cls.__qualname__ != cls.__name__:
        return written
    known = getattr(getattr(body.f_globals.get(cls.__name__), "__declared__", None), "written", None)
    if known is not None and known.body and known.body() is body.f_code:
        raise DeclarationError(
            f"Two tables of {cls.__module__} are called {cls.__name__}: {known.place()} and {written.place()}.",
            fix="Rename one of them.",
            place=written.place(),
        )
    return written


@contextmanager
def add_place(table: type, name: str = "") -> Iterator[None]:
    """Say in the errors of a declaration in which file and line it is."""
    try:
        yield
    except DeclarationError as error:
        declared = table.__dict__.get("__declared__")
        written = declared.written if declared else place_of_class(table)
        if written is not None and "place" not in error.facts:
            error.facts["place"], subject = written.place(name), f"Table {table.__name__}"
            rest = error.what.removeprefix(subject) if error.what.startswith(subject) else f": {error.what}"
            error.what = f"{subject} ({error.facts['place']}){rest}"
        raise
