"""The declarations of a program: its functions, tables, pools and what runs them.

Owns reading declarations. What function bodies do is the matter of `body`.
"""

from __future__ import annotations

import ast
import re
from collections.abc import Iterator
from dataclasses import dataclass, field
from functools import cached_property
from typing import Any, Literal

from penstock.check.finding import first_line
from penstock.check.nodes import arguments_of, last_name, parts, walk
from penstock.check.project import Module, Outside, Place, Project

Kind = Literal["query", "mutation", "action", "workflow"]
AnyDef = ast.FunctionDef | ast.AsyncFunctionDef

_DECORATORS: dict[str, tuple[Kind, bool]] = {
    "query": ("query", True),
    "mutation": ("mutation", True),
    "action": ("action", True),
    "internal_query": ("query", False),
    "internal_mutation": ("mutation", False),
    "internal_action": ("action", False),
    "workflow": ("workflow", False),
    "http": ("action", False),  # no call by name reaches it
}
_HANDLERS = {"reactive_task", "outbox", "cron"}
_DEEPEST = 10  # aliases of aliases
_CTX: dict[str, Kind] = {
    "QueryCtx": "query",
    "MutationCtx": "mutation",
    "MutationTaskCtx": "mutation",
    "ActionCtx": "action",
    "WorkflowCtx": "workflow",
    "TaskCtx": "action",
    "TaskBatchCtx": "action",
    "TaskBatchRun": "action",
}

_BACKENDS = [Outside(f"penstock.{one}") for one in ("Backend", "CallerBackend", "testing.TestApp")]


@dataclass(frozen=True, slots=True)
class Ctx:
    """The ctx of a function. With a synchronous one nothing is awaited."""

    kind: Kind
    is_sync: bool
    options: ast.Call | None = None  # the call of ``with_options`` that made it, which has all of them


@dataclass(eq=False, slots=True)
class Index:
    """An index of a table."""

    name: str
    columns: tuple[str, ...]
    is_unique: bool
    node: ast.stmt


@dataclass(eq=False, slots=True)
class Table:
    """A class of rows."""

    module: Module
    node: ast.ClassDef
    columns: dict[str, ast.expr] = field(default_factory=dict)
    indexes: dict[str, Index] = field(default_factory=dict)

    @property
    def name(self) -> str:
        """Its class."""
        return self.node.name

    @property
    def is_managed(self) -> bool:
        """Whether penstock makes its table and indexes."""
        return not any(one.arg == "managed" and ast.unparse(one.value) == "False" for one in self.node.keywords)


@dataclass(eq=False)
class Function:
    """A function of the program: declared with a decorator, or a plain one that takes a ctx, or any other."""

    module: Module
    node: AnyDef
    owner: ast.ClassDef | None = None
    kind: Kind | None = None  # of a declared function; None of a plain one
    is_public: bool = False  # whether callers from outside may call it
    # the calls of its decorator, if it has some: ``@app.mutation(access=…)``, ``partial(app.query, …)``
    options: tuple[ast.Call, ...] = ()
    handles: str = ""  # "reactive_task", "outbox" or "cron", if it is a handler of these

    @property
    def name(self) -> str:
        """Its name in its module."""
        return self.node.name

    @property
    def is_async(self) -> bool:
        """Whether it is written with async def."""
        return isinstance(self.node, ast.AsyncFunctionDef)

    @cached_property
    def is_awaited(self) -> bool:
        """Whether its calls are awaited: not those of a generator, which ``async for`` or ``async with`` takes."""
        if not self.is_async or "yield" not in self.module.text:
            return self.is_async
        return not any(isinstance(one, ast.Yield) for one in self.nodes)

    @cached_property
    def parameters(self) -> list[ast.arg]:
        """Its arguments that have names, the ctx among them."""
        given = self.node.args
        return [*given.posonlyargs, *given.args, *given.kwonlyargs]

    @cached_property
    def nodes(self) -> list[ast.AST]:
        """All that is written in it."""
        return walk(self.node)

    @cached_property
    def parents(self) -> dict[ast.AST, ast.AST]:
        """The parent of each node in it."""
        return {part: node for node in self.nodes for part in parts(node)}

    def scope_of(self, node: ast.AST) -> ast.AST | None:
        """The innermost function, class or generator in which a node runs: a default runs where the function stands."""
        path = {node}
        while (above := self.parents.get(node)) is not None:
            if isinstance(above, ast.GeneratorExp) and above.generators[0].iter not in path:
                return above
            body = above.body if isinstance(above, AnyDef | ast.ClassDef) else [getattr(above, "body", None)]
            if isinstance(above, AnyDef | ast.ClassDef | ast.Lambda) and node in body:
                return above
            path.add(above)
            node = above
        return None

    def bindings(self, name: str) -> int:
        """How often a name is bound in it, as an argument or to a value, also in functions within."""
        names = [one for one in self.nodes if isinstance(one, ast.Name) and one.id == name]
        arguments = [one for one in self.nodes if isinstance(one, ast.arg) and one.arg == name]
        return len(arguments) + sum(not isinstance(one.ctx, ast.Load) for one in names)

    @cached_property
    def statements(self) -> list[ast.AST]:
        """The statements in it, with the handlers and cases that hold some."""
        return [one for one in self.nodes if isinstance(one, ast.stmt | ast.excepthandler | ast.match_case)]

    @property
    def results(self) -> list[ast.expr]:
        """The values that it returns."""
        return [one.value for one in self.statements if isinstance(one, ast.Return) and one.value]

    @cached_property
    def _text(self) -> str:
        return "\n".join(self.module.lines[first_line(self.node) - 1 : self.node.end_lineno])

    @cached_property
    def _plain_text(self) -> str:
        return ast.unparse(self.node)

    def says(self, pattern: re.Pattern[str], unless: re.Pattern[str] | None = None) -> bool:
        """Whether a pattern is found in its text, in one form and without comments."""
        if not pattern.search(self._text):
            return False  # unparse takes long
        return bool(pattern.search(unless.sub("", self._plain_text) if unless else self._plain_text))

    @cached_property
    def assignments(self) -> dict[str, list[ast.expr]]:
        """The values that it keeps under each name, or in it: ``context["ids"] = ids``."""
        kept: dict[str, list[ast.expr]] = {}
        for one in self.statements:
            if isinstance(one, (ast.Assign, ast.AnnAssign, ast.AugAssign)) and one.value is not None:
                for target in one.targets if isinstance(one, ast.Assign) else [one.target]:
                    name = target.value if isinstance(target, ast.Subscript) else target
                    if isinstance(name, ast.Name):
                        kept.setdefault(name.id, []).append(one.value)
        return kept

    def option(self, name: str) -> ast.expr | None:
        """An option of its decorator."""
        return next((found for one in self.options if (found := keyword_of(one, name))), None)


Meaning = Function | Table | Place | Module | Outside | None  # of a name


class Program:
    """The declarations of all files."""

    def __init__(self, project: Project) -> None:
        self.project = project
        self.functions: list[Function] = []
        self.tables: list[Table] = []
        self.returned: dict[AnyDef, Any] = {}  # calls that functions give to their callers; see `body`
        self._known: dict[ast.AST, Function | Table] = {}
        self._ctx_of: dict[tuple[Module, ast.expr | str | None], Ctx | None] = {}
        for module in project.modules:
            if "penstock" in module.text or "ctx" in module.text:
                self._declare(module, module.tree.body, None)
        for module in project.modules:
            self._decorate(module)

    def _declare(self, module: Module, body: list[ast.stmt], owner: ast.ClassDef | None) -> None:
        for node in body:
            if isinstance(node, AnyDef):
                self.functions.append(self._function(module, node, owner))
                self._known[node] = self.functions[-1]
            elif isinstance(node, ast.ClassDef):
                if owner is None and self.is_table(module, node):
                    self.tables.append(self._table(module, node))
                    self._known[node] = self.tables[-1]
                self._declare(module, node.body, node)
            elif isinstance(node, ast.If | ast.With | ast.Try):
                self._declare(module, node.body, owner)

    # ----- names

    def meaning(self, module: Module, node: ast.expr | None) -> Meaning:
        """The meaning of a name, or a dotted one, at the top of a file."""
        found: Place | Module | Outside | None
        if isinstance(node, ast.Name):
            found = self.project.look_up(module, node.id)
        elif isinstance(node, ast.Attribute):
            owner = self.meaning(module, node.value)
            found = self.project.member(owner, node.attr, module) if isinstance(owner, (Module, Outside)) else None
        elif isinstance(node, ast.Constant) and isinstance(node.value, str):
            return self.meaning(module, _parse(node.value))
        else:
            return None
        return self._declaration_of(found)

    def resolve_import(self, module: Module, node: ast.Import | ast.ImportFrom) -> dict[str, Meaning]:
        """The names that an import within a function binds."""
        names = [one.asname or one.name.partition(".")[0] for one in node.names]
        return {name: self._declaration_of(self.project.resolve_import(module, node, name)) for name in names}

    def _declaration_of(self, found: Place | Module | Outside | None) -> Meaning:
        return self._known.get(found.node, found) if isinstance(found, Place) else found

    def table_of(self, module: Module, node: ast.expr | None) -> Table | None:
        """The table that a name stands for."""
        found = self.meaning(module, node)
        return found if isinstance(found, Table) else None

    def is_penstock(self, module: Module, node: ast.expr | None, *names: str) -> bool:
        """Whether an expression is one of these names of penstock."""
        found = self.meaning(module, node)
        if not isinstance(found, Outside):
            return False
        top, _, name = found.name.partition(".")
        return top == "penstock" and name.rpartition(".")[2] in names

    def is_built_in(self, module: Module, node: ast.expr | None) -> bool:
        """Whether a name is bound nowhere at the top of a file, as ``str`` is: most types are of these."""
        return isinstance(node, ast.Name) and self.project.look_up(module, node.id) is None

    def ctx_of(self, module: Module, annotation: ast.expr | None) -> Ctx | None:
        """The ctx that an annotation names; of several the weakest, as what it may do all may."""
        if self.is_built_in(module, annotation):
            return None
        key = (module, annotation.id if isinstance(annotation, ast.Name) else annotation)
        if key not in self._ctx_of:
            found = [one for place, name in self.types(module, annotation) if (one := self._ctx(place, name))]
            self._ctx_of[key] = min(found, key=lambda one: one.kind != "query", default=None)
        return self._ctx_of[key]

    def is_backend(self, module: Module, annotation: ast.expr | None) -> bool:
        """Whether an annotation names an open backend, whose calls are awaited."""
        if annotation is None or self.is_built_in(module, annotation):
            return False
        return any(self.meaning(*one) in _BACKENDS for one in self.types(module, annotation))

    def _ctx(self, module: Module, node: ast.expr) -> Ctx | None:
        found = self.meaning(module, node.value if isinstance(node, ast.Subscript) else node)
        if not isinstance(found, Outside) or not found.name.startswith("penstock."):
            return None
        name = found.name.rpartition(".")[2]
        is_sync = name.startswith("Sync") or ".sync." in found.name
        kind = _CTX.get(name.removeprefix("Sync"))
        return Ctx(kind, is_sync) if kind else None

    def types(self, module: Module, node: ast.expr | None, depth: int = 0) -> Iterator[tuple[Module, ast.expr]]:
        """The types that an annotation allows, each with the file that names it: ``A | None``, ``Union[A, B]``."""
        if isinstance(node, ast.Constant) and isinstance(node.value, str):
            node = _parse(node.value)
        module, node = self.behind(module, node)
        if node is None or depth > _DEEPEST:
            return
        parts: list[ast.expr] = []
        if isinstance(node, ast.BinOp):
            parts = [node.left, node.right]
        elif isinstance(node, ast.Subscript):
            inner, wrapper = arguments_of(node), last_name(node.value)
            parts = inner if wrapper in {"Union", "Optional"} else inner[:1] if wrapper == "Annotated" else []
        for one in parts:
            yield from self.types(module, one, depth + 1)
        if not parts:
            yield module, node

    def behind(self, module: Module, node: ast.expr | None) -> tuple[Module, ast.expr | None]:
        """The meaning of an alias at the top of a file, and its file: ``Ctx = MutationCtx``. Else the name itself."""
        for _ in range(_DEEPEST):
            value = self.value_at_top(module, node)
            if value is None:
                break
            module, node = value
        return module, node

    def value_at_top(self, module: Module, node: ast.expr | None) -> tuple[Module, ast.expr] | None:
        """The value that a name at the top of a file was given, and the file."""
        if isinstance(node, ast.Subscript) and isinstance(node.slice, ast.Constant):
            return self._at_key(module, node.value, node.slice.value)
        return self.value_bound_to(self.meaning(module, node))

    def value_bound_to(self, found: object) -> tuple[Module, ast.expr] | None:
        """The value of a name that an assignment at the top of a file binds, and the file."""
        if isinstance(found, Place) and isinstance(found.node, ast.Assign | ast.AnnAssign) and found.node.value:
            value = found.node.value
            return found.module, value.body if isinstance(value, ast.IfExp) else value
        return None

    def _at_key(self, module: Module, node: ast.expr, key: object) -> tuple[Module, ast.expr] | None:
        """An entry of a dictionary at the top of a file: ``POLICIES["slow"]``."""
        place, of = self.behind(module, node)
        pairs = zip(of.keys, of.values, strict=True) if isinstance(of, ast.Dict) else ()
        return next(((place, one) for name, one in pairs if isinstance(name, ast.Constant) and name.value == key), None)

    # ----- declarations

    def _function(self, module: Module, node: AnyDef, owner: ast.ClassDef | None) -> Function:
        function = Function(module, node, owner)
        for decorator in node.decorator_list:
            self._apply(module, decorator, function)
        return function

    def _apply(self, module: Module, decorator: ast.expr, function: Function) -> None:
        place, word, calls = self._decorator(module, decorator)
        if not isinstance(word, ast.Attribute) or not self._is_app(place, word.value, function):
            return
        if word.attr in _DECORATORS:
            function.kind, function.is_public = _DECORATORS[word.attr]
            function.options = calls
        elif word.attr in _HANDLERS:
            ctx = self.ctx_of_function(function)
            function.kind = function.kind or (ctx.kind if ctx else None)
            function.handles = word.attr
            function.options = calls

    def _decorate(self, module: Module) -> None:
        """Decorators that are called: ``app.cron("0 9 * * *")(remind)``."""
        for node in module.tree.body:
            call = node.value if isinstance(node, ast.Expr | ast.Assign) else None
            if isinstance(call, ast.Call) and len(call.args) == 1 and not call.keywords:
                found = self.meaning(module, call.args[0])
                if isinstance(found, Function) and (found.kind is None or isinstance(call.func, ast.Call)):
                    self._apply(module, call.func, found)

    def _decorator(self, module: Module, node: ast.expr | None) -> tuple[Module, ast.expr | None, tuple[ast.Call, ...]]:
        """The function that a decorator calls in the end, such as ``app.query``, and the calls that give it options."""
        calls: tuple[ast.Call, ...] = ()
        for _ in range(_DEEPEST):
            module, node = self.behind(module, node)
            passed_on = self._inner_decorator(module, node)
            if passed_on is not None:
                module, node = passed_on
                continue
            if not isinstance(node, ast.Call):
                break
            calls = (*calls, node)
            is_partial = node.args and self.meaning(module, node.func) == Outside("functools.partial")
            node = node.args[0] if is_partial else node.func
        return module, node, calls

    def _inner_decorator(self, module: Module, node: ast.expr | None) -> tuple[Module, ast.expr] | None:
        """The decorator that one of the program's own stands for.

        It is applied to the function, ``return app.mutation(access=staff)(function)``, or returned by a call.
        """
        is_called = isinstance(node, ast.Call)
        found = self.meaning(module, node.func if isinstance(node, ast.Call) else node)
        if not isinstance(found, (Place, Function)):
            return None
        inner = found.node
        last = inner.body[-1] if isinstance(inner, AnyDef) else None
        value = last.value if isinstance(last, ast.Return) else None
        if not isinstance(inner, AnyDef) or not isinstance(value, ast.Call):
            return None
        taken = inner.args.args[0].arg if inner.args.args else None
        applied = [one.id for one in value.args if isinstance(one, ast.Name)]
        if is_called:
            return None if value.args else (found.module, value)
        return (found.module, value.func) if taken is not None and applied == [taken] else None

    def _is_app(self, module: Module, node: ast.expr, function: Function) -> bool:
        """Whether this declares functions: an App, or something that is given functions with a ctx."""
        value = self.value_at_top(module, node)
        if value is not None and isinstance(value[1], ast.Call) and self.is_penstock(value[0], value[1].func, "App"):
            return True
        return self.ctx_of_function(function) is not None

    def ctx_of_function(self, function: Function) -> Ctx | None:
        """The ctx that its first argument is, after ``self``."""
        found = (self.ctx_of(function.module, one.annotation) for one in function.parameters[:2])
        return next(filter(None, found), None)

    def is_table(self, module: Module, node: ast.ClassDef) -> bool:
        """Whether a class has rows: it derives from `Table`, perhaps through another class."""
        lineage = self.lineage(module, node)
        return any(self.is_penstock(place, base, "Table", "UserTable") for place, one in lineage for base in one.bases)

    def _table(self, module: Module, node: ast.ClassDef) -> Table:
        table = Table(module, node)
        for place, one in reversed([*self.lineage(module, node)]):
            self._columns(table, place, one)
        return table

    def _columns(self, table: Table, module: Module, node: ast.ClassDef) -> None:
        for one in node.body:
            if isinstance(one, ast.AnnAssign) and isinstance(one.target, ast.Name):
                table.columns[one.target.id] = one.annotation
            elif isinstance(one, ast.Assign) and isinstance(one.value, ast.Call):
                names = tuple(given.value for given in one.value.args if isinstance(given, ast.Constant))
                if isinstance(one.targets[0], ast.Name) and self.is_penstock(module, one.value.func, "Index") and names:
                    unique = keyword_of(one.value, "unique")
                    is_unique = isinstance(unique, ast.Constant) and unique.value is True
                    name = one.targets[0].id
                    table.indexes[name] = Index(name, tuple(map(str, names)), is_unique, one)

    def lineage(self, module: Module, owner: ast.ClassDef, depth: int = 0) -> Iterator[tuple[Module, ast.ClassDef]]:
        """A class, and the classes of the program that it derives from, each with its file."""
        yield module, owner
        for base in owner.bases if depth < _DEEPEST else ():
            found = self.meaning(module, base.value if isinstance(base, ast.Subscript) else base)
            if isinstance(found, Place | Table) and isinstance(found.node, ast.ClassDef):
                yield from self.lineage(found.module, found.node, depth + 1)

    def method(self, module: Module, owner: ast.ClassDef, name: str) -> Function | None:
        """The method of a class, perhaps an inherited one."""
        nodes = (one for _, inner in self.lineage(module, owner) for one in inner.body)
        found = next((self._known.get(one) for one in nodes if isinstance(one, AnyDef) and one.name == name), None)
        return found if isinstance(found, Function) else None

    def app_functions(self) -> Iterator[Function]:
        """The functions that an app knows."""
        return (one for one in self.functions if one.kind)


def keyword_of(call: ast.Call | None, name: str) -> ast.expr | None:
    """A keyword of a call."""
    return next((one.value for one in (call.keywords if call else ()) if one.arg == name), None)


def _parse(text: str) -> ast.expr | None:
    try:
        return ast.parse(text, mode="eval").body
    except (SyntaxError, ValueError):
        return None
