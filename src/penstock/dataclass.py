"""A dataclass decorator for the values that penstock makes: quick to declare, and quick to make.

The standard one compiles six methods for each class, which took two fifths of the time to import an app, and a frozen
value takes twice as long to make. Type checkers see the standard one, and find each write to a frozen value. Policies
and other values that programs make have the standard one, which refuses such a write at run time too.
"""

from __future__ import annotations

import dataclasses
from operator import attrgetter
from reprlib import recursive_repr
from typing import TYPE_CHECKING, Any

__all__ = ["dataclass"]

if TYPE_CHECKING:
    from dataclasses import dataclass
else:

    def dataclass(cls: type | None = None, /, *, frozen: bool = False, eq: bool = True, **options: Any) -> Any:
        """Make a dataclass; `frozen` gives it a hash, and is left to type checkers."""

        def make(cls: type) -> type:
            own = set(vars(cls))
            cls.__doc__ = cls.__doc__ or cls.__qualname__  # otherwise a signature is written, which takes its time
            made = dataclasses.dataclass(cls, repr=False, eq=False, **options)
            compared = [one.name for one in dataclasses.fields(made) if one.compare]
            key = attrgetter(*compared) if compared else type
            methods: dict[str, Any] = {"__repr__": _repr}
            if eq:
                methods |= {"__eq__": _equality(key), "__hash__": (lambda self: hash(key(self))) if frozen else None}
            for name in methods.keys() - own:
                setattr(made, name, methods[name])
            return made

        return make if cls is None else make(cls)


@recursive_repr()
def _repr(self: Any) -> str:
    shown = ", ".join(f"{one.name}={getattr(self, one.name)!r}" for one in dataclasses.fields(self) if one.repr)
    return f"{type(self).__qualname__}({shown})"


def _equality(key: Any) -> Any:
    def equals(self: Any, other: Any) -> Any:
        return key(self) == key(other) if other.__class__ is self.__class__ else NotImplemented

    return equals
