"""The outcome of a step as it is stored: its result, or its error.

An error comes back as the class that it had, if this program has that, or as the nearest of its bases. Nothing is
pickled: of an error its text and the data of penstock's own errors are kept.
"""

from __future__ import annotations

import json
import sys
from collections.abc import Callable, Iterator
from functools import reduce
from typing import Any

from penstock.errors import PenstockError, StepFailed
from penstock.observe.errortext import message_of
from penstock.values import storable

_LONGEST = 10_000
_KEPT = ("what", "fix", "facts", "data", "status", "retry_after")
_PLAIN = (str, int, float, bool, type(None))
_OF_ALL = (Exception, BaseException, object)
_NEVER = (StopIteration, StopAsyncIteration)  # what a coroutine cannot raise


def result_outcome(result: str) -> str:
    """The outcome of a step that returned this, as JSON."""
    return f'{{"result":{result}}}'


def error_outcome(error: BaseException) -> str:
    """The outcome of a step that raised."""
    kept = {name: vars(error)[name] for name in _KEPT if name in vars(error)}
    args = [one if isinstance(one, _PLAIN) else None for one in error.args]
    text = storable(message_of(error))[:_LONGEST]
    form = {"types": [*_names(type(error))], "text": text, "args": args if args == [*error.args] else [text]}
    try:
        found = json.dumps({"error": {**form, "kept": kept}}, allow_nan=False)
    except (TypeError, ValueError):
        found = json.dumps({"error": {**form, "args": [text], "kept": {}}})
    return found if len(found) <= 2 * _LONGEST else json.dumps({"error": {**form, "args": [text], "kept": {}}})


def read_outcome(text: str, read: Callable[[str], Any]) -> tuple[Any, BaseException | None]:
    """The result of a stored outcome as `read` gives it, and None; or None and its error."""
    if text.startswith('{"result":'):
        return read(text[len('{"result":') : -1]), None
    return None, _error_of(json.loads(text)["error"])


def _names(kind: type[BaseException]) -> Iterator[str]:
    return (f"{one.__module__}:{one.__qualname__}" for one in kind.__mro__ if one not in _OF_ALL)


def _error_of(form: dict[str, Any]) -> BaseException:
    types: list[str] = form["types"]
    kind = next((one for name in types if (one := _find(name)) is not None), None)
    if kind is not None and not (kind is PenstockError and len(types) > 1):
        try:
            if kind.__module__ == "builtins":
                return kind(*form["args"])
            error = kind.__new__(kind, *form["args"])  # its own __init__ may take anything
            error.args = tuple(form["args"])
            vars(error).update(form["kept"])
        except (TypeError, AttributeError):
            pass
        else:
            return error
    shown = types[0] if types else "Exception"
    return StepFailed(f"A step raised {shown}: {form['text']}", type=shown, text=form["text"])


def _find(name: str) -> type[Exception] | None:
    """The class of an error, if this program has it."""
    module, _, path = name.partition(":")
    try:
        found: Any = reduce(getattr, path.split("."), sys.modules[module])
    except (KeyError, AttributeError):
        return None
    usable = isinstance(found, type) and issubclass(found, Exception) and not issubclass(found, _NEVER)
    return found if usable else None
