"""The acts of a function's body: its calls in order, and what of penstock each of them is.

Owns following values through a body: a ctx, what hangs on it, a query that is being built, a call that was not awaited.
It follows them from statement to statement, as if each branch were taken.
"""

from __future__ import annotations

import ast
from collections.abc import Callable, Iterable
from contextlib import suppress
from dataclasses import dataclass, field, replace
from typing import Any, ClassVar

from penstock.check import values, words
from penstock.check.nodes import names_in, parts, walk
from penstock.check.program import AnyDef, Ctx, Function, Program
from penstock.check.project import Module, Outside, Place
from penstock.check.values import Entries, Instance, Local, Maker, Method, OpenBackend, Pending, Pool, Rows, Scan, Word
from penstock.check.waiting import Kept, Waiting

Loop = ast.For | ast.AsyncFor
Comprehension = ast.ListComp | ast.SetComp | ast.GeneratorExp | ast.DictComp
Over = Comprehension | Loop | ast.Call  # of filter

_WITH_METHODS = (Ctx, Word, Scan, Pool, Function, Entries, OpenBackend)


@dataclass(eq=False, slots=True)
class Call:
    """One call in a body."""

    node: ast.Call
    of: Any  # what is called: a `Method`, a `Function`, an `Outside`, or None if nobody knows
    given: tuple[Any, ...]  # its arguments by place
    loop: ast.AST | None  # the innermost loop or comprehension around it
    is_tried: bool  # whether an ``except`` is around it
    # the branches around it: those of a call that always runs before this one are the first of these
    branch: tuple[int, ...]

    @property
    def method(self) -> str:
        """The name of the method that is called; empty if it is none."""
        return self.of.name if isinstance(self.of, Method) else ""

    def is_of(self, kind: type[Any], *names: str) -> bool:
        """Whether it calls a method of a thing of this kind, and one of these if any are named."""
        return isinstance(self.of, Method) and isinstance(self.of.of, kind) and (not names or self.of.name in names)

    def is_word(self, word: str, *names: str) -> bool:
        """Whether it calls a method of what hangs on a ctx: ``ctx.scheduler.run_after(…)``."""
        return self.is_of(Word, *names) and self.of.of.name == word

    def is_before(self, other: Call) -> bool:
        """Whether it always runs before another one, in the same turn of a loop."""
        return self.loop is other.loop and other.branch[: len(self.branch)] == self.branch


@dataclass(slots=True)
class Body:
    """The acts of a function."""

    function: Function
    ctx: Ctx | None = None  # its ctx, if it takes one, or its class keeps one
    ctx_name: str = ""  # what it calls that: ``ctx``, ``self.ctx``
    calls: list[Call] = field(default_factory=list)  # in the order in which they run, as far as that can be seen
    floating: list[Pending] = field(default_factory=list)  # calls that nobody awaits
    used: set[str] = field(default_factory=set)  # names that something awaits or hands on
    returned: Pending | None = None  # a call that it gives to its caller to await, if it is not async
    lists: list[tuple[Over, Rows]] = field(default_factory=list)  # what goes over rows
    outside: list[tuple[ast.expr, str]] = field(default_factory=list)  # what it uses of other packages


def read_body(program: Program, function: Function) -> Body:
    """Follow the values in a function."""
    reader = _Reader(program, function)
    with suppress(RecursionError):  # no program that people write nests so deeply
        reader.block(function.node.body)
    reader.end()
    return reader.body


class _Reader:
    def __init__(self, program: Program, function: Function) -> None:
        self._program = program
        self._module: Module = function.module
        self._values: dict[str, Any] = {}
        self._imported: dict[str, Any] = {}
        self._waiting = Waiting()
        self._loop: ast.AST | None = None
        self._tries = 0
        self._branch: tuple[int, ...] = ()
        self._is_async = function.is_async  # also of a function within
        self._returned: Any = None
        for one in function.parameters:
            self._values[one.arg] = self._parameter_value(one)
        if function.owner is not None and function.parameters and self._own_ctx()[1] != function.parameters[0].arg:
            itself = function.parameters[0].arg
            self._values[itself] = Instance(self._module, function.owner)
            if function.name != "__init__":
                kept = values.attributes_of(program, self._module, function.owner)
                self._values.update({f"{itself}.{name}": value for name, value in kept.items()})
        self.body = Body(function, *self._own_ctx(), floating=self._waiting.floating, used=self._waiting.used)

    def _parameter_value(self, argument: ast.arg) -> Ctx | OpenBackend | None:
        found = self._program.ctx_of(self._module, argument.annotation)
        return found or (OpenBackend() if self._program.is_backend(self._module, argument.annotation) else None)

    def _own_ctx(self) -> tuple[Ctx | None, str]:
        for name, value in self._values.items():
            if isinstance(value, Ctx):
                return value, name
        return next((one.ctx for one in self._values.values() if isinstance(one, Word)), None), ""

    # ----- statements

    def block(self, body: Iterable[ast.stmt]) -> None:
        for node in body:
            self._statement(node)

    def end(self) -> None:
        """See what is left at the end of the function."""
        self._waiting.end()
        self.body.returned = self._returned

    def _statement(self, node: ast.stmt) -> None:  # noqa: C901 - one case for each kind
        match node:
            case ast.Expr():
                self._waiting.drop(self.value(node.value))
            case ast.Assign(targets=[ast.Tuple(elts=targets)], value=ast.Tuple(elts=values)):
                for target, value in zip(targets, [self.value(one) for one in values], strict=False):
                    self._keep(target, value)
            case ast.Return():
                value = self.value(node.value)
                is_handed_on = isinstance(value, Pending) and value.is_task and not self.body.function.kind
                self._hand_over(None if is_handed_on else value)
            case ast.Assign():
                value = self.value(node.value)
                for target in node.targets:
                    self._keep(target, value)
            case ast.AnnAssign():
                value = self.value(node.value) if node.value else None
                self._keep(node.target, value or self._program.ctx_of(self._module, node.annotation))
            case ast.FunctionDef() | ast.AsyncFunctionDef():
                self._values[node.name] = self._local(node)
                if (made := self._inner(node)) is not None and not node.decorator_list:
                    self._values[node.name] = made
            case ast.Import() | ast.ImportFrom():
                self._imported.update(self._program.resolve_import(self._module, node))
            case ast.ClassDef():
                return
            case _:
                self._flow(node)

    def _flow(self, node: ast.stmt) -> None:
        """A statement that has others within it, or any other one."""
        match node:
            case ast.For() | ast.AsyncFor():
                value = self._look(node.iter) if isinstance(node, ast.For) else self.value(node.iter)
                self._over(node, value)
                self._keep(node.target, values.element(value))
                self._within(node, [*node.body, *node.orelse])
            case ast.While():
                self._look(node.test)
                self._within(node, [*node.body, *node.orelse])
            case ast.Try() | ast.TryStar():
                self._try(node)
            case ast.With() | ast.AsyncWith():
                for item in node.items:
                    value = self.value(item.context_expr)
                    if item.optional_vars is not None:
                        self._keep(item.optional_vars, value)
                tries = any(self._suppresses(one.context_expr) for one in node.items)
                self._tries += tries
                self.block(node.body)
                self._tries -= tries
            case ast.If():
                self._look(node.test)
                self._branches([node.body, node.orelse], [])
            case ast.Match():
                self._look(node.subject)
                self._branches([case.body for case in node.cases], [])
            case ast.Assert():
                self._look(node.test)
            case _:
                self._parts(node)

    def _try(self, node: ast.Try | ast.TryStar) -> None:
        ends: list[Kept] = []
        with self._waiting.branch(ends):
            self._tries += bool(node.handlers)
            self.block(node.body)
            self._tries -= bool(node.handlers)
        self._branches([handler.body for handler in node.handlers], ends)
        self.block([*node.orelse, *node.finalbody])

    def _branches(self, bodies: list[list[ast.stmt]], ends: list[Kept]) -> None:
        before = self._branch
        for body in bodies:
            self._branch = (*before, id(body))
            with self._waiting.branch(ends):
                self.block(body)
        self._branch = before
        self._waiting.meet(ends)

    def _within(self, loop: ast.AST, body: list[ast.stmt]) -> None:
        before, self._loop = self._loop, loop
        self.block(body)
        self._loop = before

    def _hand_over(self, value: Any) -> None:
        """Return a value: an async function that returns a call has forgotten to await it, another one leaves that."""
        if self._is_async:
            self._waiting.drop(value)
        elif isinstance(value, Pending):
            self._returned = value

    def _yield(self, node: ast.Yield) -> None:
        self._hand_over(values.many(self.value(node.value)))

    def _inner(self, node: AnyDef | ast.Lambda) -> Maker | None:
        """A function within the function: it sees the same names, but for its own arguments."""
        for one in (*getattr(node, "decorator_list", ()), *node.args.defaults, *node.args.kw_defaults):
            self.value(one)
        given = [*node.args.posonlyargs, *node.args.args, *node.args.kwonlyargs]
        before, branch = dict(self._values), self._branch
        self._branch = (*branch, id(node))  # nobody knows when it is called
        self._values.update({one.arg: self._parameter_value(one) for one in given})
        outer = self._is_async, self._returned
        self._is_async, self._returned = isinstance(node, ast.AsyncFunctionDef), None
        with self._waiting.inner({one.arg for one in given}):
            if isinstance(node, ast.Lambda):
                self._hand_over(self.value(node.body))
            else:
                self.block(node.body)
        made = Maker(self._returned) if self._returned else None
        self._values, self._branch, (self._is_async, self._returned) = before, branch, outer
        return made

    def _local(self, node: AnyDef) -> Local | None:
        """A function within that must be awaited: it is no generator, and uses a ctx."""
        if not isinstance(node, ast.AsyncFunctionDef) or node.decorator_list:
            return None
        uses = any(isinstance(self._values.get(one), Ctx | Word | Scan) for one in names_in(node))
        return Local(node) if uses and not any(isinstance(one, ast.Yield) for one in walk(node)) else None

    def _keep(self, target: ast.expr, value: Any) -> None:
        if isinstance(target, (ast.Tuple, ast.List)):
            for one in target.elts:
                self._keep(one, None)
            return
        name = _path_of(target)
        if not name:
            return
        self._values[name] = value
        if isinstance(target, ast.Name):
            self._waiting.keep(name, value)

    def _suppresses(self, node: ast.expr) -> bool:
        found = self._program.meaning(self._module, node.func) if isinstance(node, ast.Call) else None
        return found in {Outside("contextlib.suppress"), Outside("pytest.raises")}

    def _over(self, node: Over, value: Any) -> None:
        if isinstance(value, Rows):
            self.body.lists.append((node, value))
        elif isinstance(value, Scan):
            self.body.lists.append((node, Rows(value, "iterate", None)))

    # ----- values

    def value(self, node: ast.AST | None) -> Any:
        """The value of an expression; None if nobody knows. Notes the calls in it."""
        read = self._READERS.get(node.__class__)
        if read is not None:
            return read(self, node)
        if node is not None:
            self._parts(node)
        return None

    def _await(self, node: ast.Await) -> Any:
        value = self.value(node.value)
        if not isinstance(value, Pending):
            return value
        if value.is_many:  # nothing awaits a list
            self._waiting.drop(value)
        self._waiting.mark_awaited(value)
        return value.gives

    def _walrus(self, node: ast.NamedExpr) -> Any:
        value = self.value(node.value)
        self._keep(node.target, value)
        return value

    def _either(self, node: ast.IfExp) -> Any:
        self._look(node.test)
        given = [self.value(node.body), self.value(node.orelse)]
        if isinstance(given[0], Pending) and isinstance(given[1], Pending):
            given[0].other = given[1]
        return given[0] or given[1]

    def _last(self, node: ast.BoolOp) -> Any:
        for one in node.values[:-1]:
            self._look(one)
        return self.value(node.values[-1])

    def _condition(self, node: ast.Compare | ast.UnaryOp) -> None:
        for part in parts(node):
            self._look(part)

    def _look(self, node: ast.AST) -> Any:
        """The value of what is only looked at: that awaits no call, wherever it was kept."""
        if isinstance(node, ast.Name):
            self._waiting.look(node.id)
            return self._look_up(node)
        value = self.value(node)
        if isinstance(value, Pending) and not isinstance(node, ast.NamedExpr) and not value.is_many:
            self._waiting.drop(value)
        return value

    def _parts(self, node: ast.AST) -> None:
        """Look at the parts of what is nothing in itself, such as a long sum, in their order."""
        waiting = [(node, False)]
        while waiting:
            one, is_operand = waiting.pop()
            if one.__class__ in self._READERS and one is not node:
                (self._look if is_operand else self.value)(one)
            else:
                are_operands = isinstance(one, (ast.BinOp, ast.FormattedValue, ast.AugAssign))
                waiting.extend((part, are_operands) for part in reversed(parts(one)))

    def _name(self, node: ast.Name) -> Any:
        self._waiting.take(node.id)
        return self._look_up(node)

    def _look_up(self, node: ast.Name) -> Any:
        if node.id in self._imported:
            return self._note(node, self._at_top(self._imported[node.id]))
        return self._values[node.id] if node.id in self._values else self._note(node, self._global(node))

    def _global(self, node: ast.expr) -> Any:
        return self._at_top(self._program.meaning(self._module, node))

    def _at_top(self, found: Any) -> Any:
        if not isinstance(found, Place) or isinstance(found.node, ast.ClassDef):
            return found
        bound = self._program.value_bound_to(found)
        return self._evaluate(*self._program.behind(*bound), found.name) if bound else None

    def _evaluate(self, module: Module, made: ast.expr | None, name: str) -> Any:  # noqa: PLR0911 - one for each kind
        """The value of an expression at the top of a file."""
        if isinstance(made, ast.Subscript):
            place, value = self._program.behind(module, made.value)
            of = self._evaluate(place, value, name) if isinstance(value, ast.Dict) else None
            return of.at(made.slice) if isinstance(of, Entries) else None
        if isinstance(made, ast.Dict):
            pairs = zip(made.keys, made.values, strict=True)
            return Entries(
                {key.value: self._entry(module, one, name) for key, one in pairs if isinstance(key, ast.Constant)}
            )
        if isinstance(made, ast.Call):
            method = made.func.attr if isinstance(made.func, ast.Attribute) else ""
            if method == "workpool":
                return Pool(name, (made,))
            if method == "with_options" and isinstance(made.func, ast.Attribute):
                inner = self._program.meaning(module, made.func.value)
                return Pool(inner.name if isinstance(inner, Place) else name, (made,))
            kind = self._program.meaning(module, made.func)
            if isinstance(kind, Place):
                return Instance(kind.module, kind.node) if isinstance(kind.node, ast.ClassDef) else None
            name = kind.name if isinstance(kind, Outside) else ""
            is_client = name.rpartition(".")[2][:1].isupper() or name in words.CLIENT_MAKERS
            return Outside(f"{name}()") if is_client else None  # all functions share it
        return self._program.meaning(module, made)

    def _entry(self, module: Module, node: ast.expr, name: str) -> Any:
        place, value = self._program.behind(module, node)
        return None if isinstance(value, ast.Dict) and value is not node else self._evaluate(place, value, name)

    def _at_key(self, node: ast.Subscript) -> Any:
        of = self._look(node.value)
        self.value(node.slice)
        return of.at(node.slice) if isinstance(of, Entries) else None

    def _entries(self, node: ast.Dict) -> Entries:
        found = {}
        for key, one in zip(node.keys, node.values, strict=True):
            self.value(key)
            value = self.value(one)
            if isinstance(key, ast.Constant):
                found[key.value] = value
        return Entries(found)

    def _attribute(self, node: ast.Attribute) -> Any:
        name = _path_of(node)
        if name and name in self._values:
            return self._values[name]
        return self._note(node, self._member(self._look(node.value), node))

    def _note(self, node: ast.expr, value: Any) -> Any:
        if isinstance(value, Outside) and not value.name.endswith("()"):
            self.body.outside.append((node, value.name))
        return value

    def _member(self, of: Any, node: ast.Attribute) -> Any:
        if isinstance(of, _WITH_METHODS):
            return Word(of, node.attr) if isinstance(of, Ctx) and node.attr in values.WORDS else Method(of, node.attr)
        if isinstance(of, (Module, Outside)):
            return self._global(node) or self._program.project.member(of, node.attr, self._module)
        if isinstance(of, Instance):
            kept = values.attributes_of(self._program, of.module, of.owner).get(node.attr)
            return kept or self._program.method(of.module, of.owner, node.attr)
        if isinstance(of, Place) and isinstance(of.node, ast.ClassDef):
            return self._program.method(of.module, of.node, node.attr)
        return None

    def _call(self, node: ast.Call) -> Any:
        of = self.value(node.func)
        take = self._look if words.takes_values(node, of) else self.value
        word = node.func.id if isinstance(node.func, ast.Name) else ""
        before = self._loop
        if word == "map":
            self._loop = node
        given = [take(one.value if isinstance(one, ast.Starred) else one) for one in node.args]
        named = {one.arg: (self.value if word == "dict" else take)(one.value) for one in node.keywords}
        self._loop = before
        known = None if isinstance(of, Maker) else of
        call = Call(node, known, tuple(given), self._loop, bool(self._tries), self._branch)
        self.body.calls.append(call)
        if word == "filter" and len(given) == 2:  # noqa: PLR2004 - rows of it
            self._over(node, given[1])
        decides = word in words.DECIDES or "key" in named or call.is_of(Scan, "filter")
        for one in [*given, *named.values()] if decides else ():  # by what functions give, or by what is in a list
            self._waiting.drop(one.of if isinstance(one, Maker) else one if values.is_many(one) else None)
        if word == "map" and given:
            made = self._call_result(node, given[0], given[1:])
            return replace(made, is_many=True, is_maker=True) if isinstance(made, Pending) else None
        if word in words.COPIES and given and values.is_many(given[0]):
            return given[0]
        return self._call_result(node, of, [*given, *named.values()])

    def _call_result(self, node: ast.Call, of: Any, given: list[Any]) -> Any:  # noqa: PLR0911 - one for each kind
        """The value that a call gives."""
        if isinstance(of, Maker):
            return self._call_result(node, of.of, [*of.given, *given])
        if isinstance(of, Pending):
            return Pending(node, gives=of.gives, is_many=of.is_many, is_maker=of.is_many)
        if isinstance(of, Method):
            return self._result(node, of, given)
        if isinstance(of, Function):
            has_ctx = any(isinstance(one, Ctx | OpenBackend) for one in given) or (
                of.owner and any(values.attributes_of(self._program, of.module, of.owner).values())
            )
            if not has_ctx or (of.is_async and not of.is_awaited):
                return None
            returned = None if of.is_async else _result_of(self._program, of)
            has_many = values.is_many(returned)
            return Pending(node, of.name, is_many=has_many, is_maker=has_many) if of.is_async or returned else None
        if isinstance(of, Local):
            return Pending(node, of.node.name)
        if isinstance(of, Outside):
            if of.name == "functools.partial" and given and isinstance(given[0], (Method, Function, Local, Maker)):
                return Maker(given[0], tuple(given[1:]))
            if of.name in words.TAKES_CALLS and any(isinstance(one, Pending) for one in given):
                return Pending(node, is_task=True)
            return OpenBackend() if of.name in words.OPENS else None
        return Instance(of.module, of.node) if isinstance(of, Place) and isinstance(of.node, ast.ClassDef) else None

    def _result(self, node: ast.Call, method: Method, given: list[Any]) -> Any:  # noqa: PLR0911 - one for each kind
        of, name = method.of, method.name
        if isinstance(of, OpenBackend):
            return Pending(node) if name in words.OF_BACKENDS else of if name == "with_identity" else None
        if isinstance(of, Entries):
            return of.at(node.args[0]) if name == "get" and node.args else None
        if isinstance(of, Scan):
            return self._step(node, of, name)
        if isinstance(of, Word) and of.name == "db" and name == "query":
            return Scan(of.ctx, self._program.table_of(self._module, node.args[0] if node.args else None))
        if isinstance(of, Pool):
            if name == "with_options":
                return Pool(of.name, (*of.options, node))
            is_async = bool(given) and (
                isinstance(given[0], OpenBackend) or (isinstance(given[0], Ctx) and not given[0].is_sync)
            )
            return Pending(node, f"{of.name}.{name}") if is_async and name in words.POOL else None
        if isinstance(of, Ctx) and name == "with_options":
            return replace(of, options=node)
        ctx = of if isinstance(of, Ctx) else of.ctx if isinstance(of, Word) else None
        awaited = words.CTX_CALLS if isinstance(of, Ctx) else words.AWAITED.get(getattr(of, "name", ""), set())
        return Pending(node) if ctx is not None and not ctx.is_sync and name in awaited else None

    def _step(self, node: ast.Call, scan: Scan, name: str) -> Any:
        if name == "with_index":
            index = node.args[0].attr if node.args and isinstance(node.args[0], ast.Attribute) else ""
            equal = tuple(one.arg for one in node.keywords if one.arg)
            of = [one.value.func if isinstance(one.value, ast.Call) else None for one in node.keywords]
            is_endless = bool(of) and all(self._program.is_penstock(self._module, one, "gt", "gte") for one in of)
            return Scan(scan.ctx, scan.table, index, equal, bool(node.keywords), scan.filters, is_endless)
        if name == "with_search_index":  # no other index serves it
            return Scan(scan.ctx, None, is_bounded=True, filters=scan.filters)
        if name == "filter":
            return replace(scan, filters=(*scan.filters, node))
        if name in {"order", "group_by"}:
            return scan
        if name in words.ENDS:
            rows = Rows(scan, name, node)
            return rows if scan.ctx.is_sync else Pending(node, gives=rows)
        return None

    def _display(self, node: ast.List | ast.Tuple | ast.Set) -> Pending | None:
        calls: Pending | None = None
        for value in [self.value(one) for one in node.elts]:
            if isinstance(value, Pending):
                value.other, calls = calls, value
        return values.many(calls)

    def _comprehension(self, node: Comprehension) -> Any:
        before, loop = dict(self._values), self._loop
        with self._waiting.inner({getattr(part, "id", "") for one in node.generators for part in walk(one.target)}):
            for one in node.generators:
                rows = self.value(one.iter) if one.is_async else self._look(one.iter)
                self._over(node, rows)
                self._loop = node
                self._keep(one.target, values.element(rows))
                for condition in one.ifs:
                    self._look(condition)
            self.value(node.key if isinstance(node, ast.DictComp) else None)
            value = self.value(node.value if isinstance(node, ast.DictComp) else node.elt)
        self._values, self._loop = before, loop
        return values.many(value)

    _READERS: ClassVar[dict[type, Callable[[Any, Any], Any]]] = {  # by the kind of expression
        ast.Name: _name,
        ast.Attribute: _attribute,
        ast.Subscript: _at_key,
        ast.Dict: _entries,
        ast.Await: _await,
        ast.Call: _call,
        ast.NamedExpr: _walrus,
        ast.Lambda: _inner,
        ast.Yield: _yield,
        ast.IfExp: _either,
        ast.BoolOp: _last,
        ast.Compare: _condition,
        ast.UnaryOp: _condition,
        **dict.fromkeys(Comprehension.__args__, _comprehension),
        **dict.fromkeys((ast.List, ast.Tuple, ast.Set), _display),
    }


def _result_of(program: Program, function: Function) -> Any:
    """The call that a function which is not async gives to its caller to await."""
    if function.node not in program.returned:
        program.returned[function.node] = None  # it may call itself
        program.returned[function.node] = read_body(program, function).returned
    return program.returned[function.node]


def _path_of(node: ast.expr) -> str:
    """A name or an attribute of one: ``self.ctx``."""
    if isinstance(node, ast.Name):
        return node.id
    if isinstance(node, ast.Attribute) and isinstance(node.value, ast.Name):
        return f"{node.value.id}.{node.attr}"
    return ""
