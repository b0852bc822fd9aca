"""Faces: asynchronous objects for code that does not await. A face has the methods of a class, and no logic of its own.

Type checkers read the stub next to a module of faces; `make format` writes it from the asynchronous classes.
"""

from __future__ import annotations

import functools
import inspect
from collections.abc import AsyncIterator, Callable, Iterator
from typing import Any

from penstock.calls.run.bridge import Wait

_CALL = "Coroutine[Any, Any, "
FACES: dict[type[Any], Callable[[Any, Wait], Any]] = {}  # by class: what makes the faces of its objects


class Face:
    """Stands for an asynchronous object, its twin. A subclass ``of=`` a class has the public attributes of that class.

    Calls wait for results. A subclass writes only the methods that take or do something else than those of its twin.
    """

    def __init__(self, twin: Any, wait: Wait) -> None:
        self._twin, self._wait = twin, wait

    def __init_subclass__(cls, of: type[Any] | None = None) -> None:
        super().__init_subclass__()
        if of is None:
            return
        FACES[of] = cls
        fields = inspect.get_annotations(of)
        for name, given in vars(of).items():
            if name == "__aiter__":
                cls.__iter__ = _iterate  # type: ignore[attr-defined]
            elif not name.startswith("_") and name not in fields and name not in vars(cls):
                setattr(cls, name, _make_attribute(name, given))

    def _reach(self) -> tuple[Any, Wait]:
        """The twin, and what waits for its calls."""
        return self._twin, self._wait


def face_of(value: Any, wait: Wait) -> Any:
    """The face of a value; the value itself if its class has none."""
    make = FACES.get(type(value))
    return value if make is None else make(value, wait)


def forward(name: str, doc: str | None = None) -> Any:
    """Make an attribute of a face: it gives the value that the twin has, or the face of that."""

    def read(face: Face) -> Any:
        twin, wait = face._reach()  # noqa: SLF001 - a part of the face
        return face_of(getattr(twin, name), wait)

    return property(read, doc=doc)


def _make_attribute(name: str, given: Any) -> Any:
    """Make the attribute of a face from that of its class."""
    if isinstance(given, property):
        return forward(name, given.__doc__)
    if not inspect.isfunction(given):
        return given

    @functools.wraps(given)
    def call(self: Face, /, *args: Any, **kwargs: Any) -> Any:
        twin, wait = self._reach()
        result = getattr(twin, name)(*args, **kwargs)
        return face_of(wait(result) if inspect.iscoroutine(result) else result, wait)

    del call.__wrapped__  # by which tools take it for a coroutine function
    call.__signature__ = _signature_of(given)  # type: ignore[attr-defined]
    return call


def _signature_of(method: Callable[..., Any]) -> inspect.Signature:
    """The signature of a method without the coroutine around its result."""
    signature = inspect.signature(method)
    kind = str(signature.return_annotation)
    return signature.replace(return_annotation=kind[len(_CALL) : -1]) if kind.startswith(_CALL) else signature


def _iterate(self: Face) -> Iterator[Any]:
    twin, wait = self._reach()
    items: AsyncIterator[Any] = aiter(twin)
    ended = object()

    async def following() -> Any:
        return await anext(items, ended)

    while (item := wait(following())) is not ended:
        yield item
