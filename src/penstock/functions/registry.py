"""The registry: from a name to its function.

Owns the names of one app. Leaves the rights of callers to `calls/run/dispatch`.
"""

from __future__ import annotations

import difflib
import re
import sys
from collections.abc import Callable, Collection, Iterable, Iterator, Mapping, Sequence
from contextlib import AbstractAsyncContextManager
from functools import cached_property
from hashlib import blake2b
from types import CodeType, FunctionType, ModuleType
from typing import Any

from penstock.codec import Codec
from penstock.config import Password
from penstock.distribution import __version__
from penstock.errors import DeclarationError, FunctionNotFound
from penstock.functions.component import short_name
from penstock.functions.function import AnyFunction, Function, FunctionKind
from penstock.functions.httpaction import HttpAction, HttpActions
from penstock.functions.signature import Signature
from penstock.observe.places import place_of_handler
from penstock.schema.table import Table

LONGEST_PATH = 512
# The program's wrapper of its jobs: gets the name of a function, and the `Work` of each job that one call of it runs.
AroundJobs = Callable[[str, Sequence[Any]], AbstractAsyncContextManager[Any]]
_HANDLE = "function://"
_NAME = re.compile(r"[A-Za-z_][\w.]*:[A-Za-z_]\w*")


class Registry:
    def __init__(self) -> None:
        self.program = ""  # the name of the app
        self.codec: Codec | None = None  # the codec of the app
        self.around_jobs: AroundJobs | None = None
        self.password: Password | None = None  # gives the password of the database
        self._functions: dict[str, AnyFunction] = {}
        self._spelled: dict[str, AnyFunction] = {}  # by their names with dots in place of slashes
        self._http_names: dict[str, AnyFunction] = {}
        self.http = HttpActions()
        self.events: dict[str, Any] = {}  # the events that runs of workflows wait for
        # for each topic, what gives the signature of the payload that a handler takes
        self.topics: dict[str, list[Callable[[], Signature]]] = {}

    def add(self, function: AnyFunction) -> None:
        self._name(function, self._functions, self._http_names)
        known = self._spelled.setdefault(function.name.replace("/", "."), function)
        if known is not function:
            raise DeclarationError(
                f"Clients call {known.name} and {function.name} by one name.", fix="Give the component another name."
            )

    def add_http(self, action: HttpAction[Any, ..., Any, Any]) -> None:
        """Add an HTTP action. Calls by name do not find it."""
        self._name(action, self._http_names, self._functions)
        self.http.add(action)

    def _name(self, function: AnyFunction, names: dict[str, AnyFunction], others: dict[str, AnyFunction]) -> None:
        given: object = function.name
        name, where = str(given), place_of_handler(function.declared)
        own = name if function.component is None else short_name(name)
        if name is not given or len(name) > LONGEST_PATH or not _NAME.fullmatch(own):
            raise DeclarationError(
                f"{given!r} ({where}) is not a function name.",
                fix="Names have the form module:function, such as http:fetch, of letters, digits, _ and dots.",
            )
        known = others.get(name) or names.setdefault(name, function)
        if known is not function:
            raise DeclarationError(
                f"Two functions are named {name}: {place_of_handler(known.declared)} and {where}.",
                fix="Rename one of them; if it is one function, its module was imported under two names.",
            )

    def find(self, path: str) -> AnyFunction | None:
        """The function of this name; slashes in the module part stand for dots."""
        return self._functions.get(path) or self._spelled.get(path.replace("/", "."))

    def full_name(self, name: str) -> str:
        """The name with its module; the name as it is if it is unknown or ambiguous, as jobs outlive functions."""
        found = matching(name, self._functions)
        return found[0] if len(found) == 1 and ":" not in name else name

    def kinds(self) -> dict[str, str]:
        return {function.name: function.kind.job_kind for function in self}

    @property
    def workflows(self) -> list[str]:
        """The names of the workflows."""
        return [name for name, function in self._functions.items() if function.kind is FunctionKind.WORKFLOW]

    @cached_property
    def fingerprint(self) -> str:
        """A digest of penstock's version and the code in the modules of its functions: a deploy gives another one."""
        digest = blake2b(__version__.encode(), digest_size=8)
        for name in sorted({function.declared.__module__ for function in self}):
            for code in _codes_of(vars(sys.modules[name]) if name in sys.modules else {}, name):
                digest.update(code)
        return digest.hexdigest()

    def __iter__(self) -> Iterator[AnyFunction]:
        return iter(self._functions.values())


def make_handle(function: AnyFunction) -> str:
    """The handle of a function of a program."""
    return f"{_HANDLE}{function.name}"


def read_handle(registry: Registry, handle: object) -> AnyFunction:
    """The function of a handle; `FunctionNotFound` if there is none."""
    name = handle.removeprefix(_HANDLE) if isinstance(handle, str) and handle.startswith(_HANDLE) else ""
    found = registry.find(name)
    if found is None:
        raise FunctionNotFound(
            f"No function has the handle {str(handle)[:200]!r}.", fix="Make handles with ctx.handle_of.", path=name
        )
    return found


def matching(name: str, names: Collection[str]) -> list[str]:
    """The names that a name may mean: itself, or else each that has only a module before it, in the same component."""
    if name in names:
        return [name]
    component, slash, short = name.rpartition("/")
    within = [one.removeprefix(component + slash) for one in names if one.rpartition("/")[0] == component]
    return [f"{component}{slash}{one}" for one in within if one.endswith((f":{short}", f".{short}"))]


def nearest(name: str, names: Collection[str], most: int = 1) -> list[str]:
    """The names that somebody may have meant, with or without their modules."""
    short = {one.rpartition(":")[2]: one for one in names}
    near = difflib.get_close_matches(name.rpartition(":")[2], short, most, 0.7)
    return [short[one] for one in near] or difflib.get_close_matches(name, names, most)


def _codes_of(names: Mapping[str, Any], module: str) -> Iterator[bytes]:
    """The code of the functions and methods of a module, in a fixed order."""
    for name in sorted(names):
        found = names[name].declared if issubclass(type(names[name]), Function) else names[name]
        kind = type(found)  # other objects may do anything when they are asked
        if issubclass(kind, FunctionType) and found.__module__ == module:
            yield from _parts_of(found.__code__)
        elif issubclass(kind, type) and found.__module__ == module:
            yield from _codes_of({key: one for key, one in vars(found).items() if key != "__dict__"}, module)


def _parts_of(code: CodeType) -> Iterator[bytes]:
    yield code.co_code
    yield repr(code.co_names).encode()
    for constant in code.co_consts:
        if isinstance(constant, CodeType):
            yield from _parts_of(constant)
        elif not isinstance(constant, frozenset):  # whose order differs
            yield repr(constant).encode()


def tables_of(functions: Iterable[AnyFunction]) -> list[type[Table]]:
    """Tables that the modules of functions name: directly, or through modules of the same package.

    The module of a wrapped handler, of a task or an outbox, counts for tables that penstock creates. Tables of other
    programs exist already, and a handler that needs one names it.
    """
    found: dict[type[Table], None] = {}
    modules: dict[tuple[int, bool], dict[str, Any]] = {}  # each once, by whether functions are wrapped handlers of it
    for function in functions:
        declared = function.declared
        own: dict[str, Any] = declared.__globals__
        handlers = None if own.get("__name__") == declared.__module__ else sys.modules.get(declared.__module__)
        module = own if handlers is None else vars(handlers)
        modules[id(module), handlers is not None] = module
    for (_, is_wrapped), module in modules.items():
        root = str(module.get("__name__", "")).partition(".")[0]
        beside = _tables_in(module)
        for value in list(module.values()):
            if isinstance(value, ModuleType) and value.__name__.partition(".")[0] == root:
                beside += _tables_in(vars(value))
        found.update((table, None) for table in beside if table.__managed__ or not is_wrapped)
    return list(found)


def _tables_in(namespace: Mapping[str, Any]) -> list[type[Table]]:
    return [
        value
        for value in list(namespace.values())
        if isinstance(value, type) and issubclass(value, Table) and value is not Table and "__declared__" in vars(value)
    ]


def distinct(tables: Iterable[type[Table]]) -> list[type[Table]]:
    """Each table once; two of one name are refused."""
    found: dict[str, type[Table]] = {}
    for table in tables:
        known = found.setdefault(table.__declared__.sql_name, table)
        if known is not table:
            raise DeclarationError(
                f"Two tables are named {table.__declared__.sql_name}: {known.__module__}.{known.__qualname__} and "
                f"{table.__module__}.{table.__qualname__}.",
                fix='Give one of them another name="…".',
            )
    return list(found.values())
