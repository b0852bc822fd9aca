"""Rules about the body of a workflow, which runs again from its start each time the run goes on.

Owns the calls and reads that a replay does not repeat. Leaves finding out what a call does to `body`.
"""

from __future__ import annotations

import ast
from collections.abc import Iterator

from penstock.check.body import Body, Call
from penstock.check.nodes import last_name, walk
from penstock.check.program import AnyDef, Function
from penstock.check.project import Outside, Place
from penstock.check.rule import Facts, Places, Rule, rule
from penstock.check.rules.outside import DATA, FILES, NETWORK, changing, repair
from penstock.check.values import OpenBackend, Pool

_OF_PROCESS = {"os.getpid", "os.getcwd", "platform.node", "socket.gethostname", "uuid.getnode"}
_BUILT_IN = {"id": "differs in each process", "hash": "differs in each process", "input": "asks a person each time"}
_THREADS = (
    "threading.", "_thread.", "concurrent.futures.", "multiprocessing.", "asyncio.to_thread", "asyncio.run",
    "asyncio.Runner", "asyncio.new_event_loop", "anyio.to_thread.", "anyio.from_thread.", "anyio.to_process.",
    "starlette.concurrency.", "fastapi.concurrency.", "asgiref.sync.", "joblib.", "gevent.", "trio.to_thread.",
)  # fmt: skip
_MORE_OUTSIDE = (
    "os.listdir", "os.scandir", "os.walk", "os.stat", "os.path.exists", "os.path.isfile", "os.path.isdir",
    "os.path.getsize", "os.path.getmtime", "os.open", "glob.glob", "glob.iglob", "io.open", "linecache.",
    "importlib.resources.", "time.sleep", "asyncio.open_connection", "asyncio.open_unix_connection",
    "asyncio.start_server", "sqlalchemy.create_engine", "sqlalchemy.ext.asyncio.create_async_engine",
)  # fmt: skip
_MORE_FILES = FILES | {"iterdir", "rglob", "touch", "is_file", "is_dir", "open"}  # of a Path
_ASYNC_OF_BODY = ("asyncio.", "penstock.", "contextlib.")
_SET_METHODS = {"union", "intersection", "difference", "symmetric_difference"}
_SET_TYPES = {"set", "frozenset", "Set", "AbstractSet", "FrozenSet", "MutableSet"}
_ORDERED = {"int", "bool"}  # whose hashes are alike in each process
_UNORDERED = {"sorted", "sum", "min", "max", "any", "all", "len", "set", "frozenset"}  # the order makes no difference
_TAKES_ORDER = {"list", "tuple", "iter", "enumerate", "zip", "map", "filter", "reversed"}
_MUTABLE = {"dict", "list", "set", "deque", "Counter", "defaultdict", "OrderedDict", "bytearray", "SimpleNamespace"}
_CHANGES = {
    "append", "appendleft", "extend", "insert", "remove", "pop", "popitem", "popleft", "clear", "update", "setdefault",
    "add", "discard", "sort", "reverse", "subtract", "rotate", "move_to_end", "difference_update",
    "intersection_update", "symmetric_difference_update",
}  # fmt: skip


def _bodies(facts: Facts) -> Iterator[tuple[Body, Function]]:
    """The bodies of workflows and of the helpers that they call, each with the workflow."""
    declared = sorted(facts.bodies_of("workflow"), key=lambda one: one.function.kind is None)
    return iter(facts.reach(declared).values())


@rule("PEN023", "Do it in an action, whose result is recorded.")
def replays_alike(facts: Facts, rule: Rule) -> Places:
    """A workflow asks the clock, chance or the environment."""
    for body, root in _bodies(facts):
        calls = {one.node.func: one.node for one in body.calls}
        for node, name in body.outside:
            told = "is this process's own" if name in _OF_PROCESS else changing(name, calls.get(node))
            if told:
                fix, edits = (
                    ("", []) if name in _OF_PROCESS else repair(facts.program, body, node, name, calls.get(node))
                )
                yield rule.at(body, node, f"{name} {told}: a replay of {root.name} gets another value.", fix, edits)
        for call in body.calls:
            name = last_name(call.node.func)
            if call.of is None and name in _BUILT_IN and _is_built_in(facts, body, call):
                yield rule.at(
                    body, call.node, f"{name}() {_BUILT_IN[name]}: a replay of {root.name} gets another value."
                )


@rule("PEN024", "Do it in an action: await ctx.run_action(…), whose result is recorded.")
def only_steps(facts: Facts, rule: Rule) -> Places:
    """A workflow does something that is not recorded."""
    for body, root in _bodies(facts):
        told = set[ast.AST]()
        for node, name in body.outside:
            if name in _OF_PROCESS or DATA.search(name):
                continue
            if name.startswith(_THREADS):
                told.add(node)
                yield rule.at(
                    body, node, f"{name} leaves the body of {root.name}, and a replay cannot repeat its order."
                )
            elif name.startswith((*NETWORK, *_MORE_OUTSIDE)):
                told.add(node)
                yield rule.at(body, node, f"{name} is outside of {root.name}, and happens again in each replay.")
        for call in body.calls:
            if call.node.func not in told and (message := _why_unrecorded(facts, body, call, root)):
                yield rule.at(body, call.node, *message)


def _why_unrecorded(facts: Facts, body: Body, call: Call, root: Function) -> tuple[str, str] | None:
    """Why a call is none of the ctx, and what to write, if there is something better than an action."""
    node, name, of = call.node, last_name(call.node.func), call.of
    again = f"and happens again in each replay of {root.name}."
    if isinstance(of, Function) and of.kind in {"query", "mutation", "action", "workflow"}:
        return (
            f"{of.name} is called as a helper: nothing of it is recorded.",
            f"Write await ctx.run_{of.kind}({of.name}, …).",
        )
    if call.is_of(OpenBackend) or (call.is_of(Pool) and not call.is_of(Pool, "with_options")):
        return f"{call.method} is no call of the ctx: nothing of it is recorded, {again}", ""
    is_name = isinstance(node.func, ast.Name)
    reaches = name == "open" and _is_built_in(facts, body, call) if is_name else name in _MORE_FILES
    if of is None and reaches:
        return f"{name} is outside of {root.name}, {again}", ""
    if name == "run_in_executor":
        return f"{name} leaves the body of {root.name}, and a replay cannot repeat its order.", ""
    is_awaited = isinstance(body.function.parents.get(node), ast.Await)
    is_foreign = isinstance(of, Outside) and not of.name.startswith(_ASYNC_OF_BODY)
    return (
        (f"{of.name} is awaited, and no call of the ctx: nothing of it is recorded.", "")
        if is_awaited and is_foreign
        else None
    )


def _is_built_in(facts: Facts, body: Body, call: Call) -> bool:
    name = last_name(call.node.func)
    bound = body.function.bindings(name) or any(getattr(one, "name", "") == name for one in body.function.statements)
    return not bound and facts.program.is_built_in(body.function.module, call.node.func)


@rule("PEN025", "Write sorted(…).")
def in_order(facts: Facts, rule: Rule) -> Places:
    """A workflow goes over a set."""
    for body, root in _bodies(facts):
        sets = _Sets(body.function)
        for node in body.function.nodes:
            if (found := sets.find_iterated(node)) is not None:
                text = ast.unparse(found)
                message = (
                    f"{text} is a set, whose order is another one in each process: a replay of {root.name} differs."
                )
                yield rule.at(body, found, message)


class _Sets:
    """The sets of one function, as far as its text shows them."""

    def __init__(self, function: Function) -> None:
        self._function = function
        self._annotated = {one.arg: one.annotation for one in function.parameters if one.annotation is not None}
        for one in function.statements:
            if isinstance(one, ast.AnnAssign) and isinstance(one.target, ast.Name):
                self._annotated[one.target.id] = one.annotation

    def find_iterated(self, node: ast.AST) -> ast.expr | None:
        """The set whose order a node takes, if it does."""
        match node:
            case ast.For(iter=over):
                found = [over]
            case ast.ListComp() | ast.GeneratorExp() | ast.DictComp():
                found = [] if self._is_free(node) else [one.iter for one in node.generators]
            case ast.Starred(value=over, ctx=ast.Load()):
                found = [] if isinstance(self._function.parents.get(node), ast.Set) else [over]
            case ast.Call(func=ast.Name(id=name), args=args) if name in _TAKES_ORDER:
                found = [] if self._is_free(node) else args
            case ast.Call(func=ast.Attribute(attr="join"), args=args):
                found = args
            case ast.Call(func=ast.Attribute(value=of, attr="pop"), args=[], keywords=[]):
                found = [of]
            case ast.Assign(targets=[ast.Tuple() | ast.List()], value=over):
                found = [over]
            case _:
                found = []
        return next((one for one in found if self._is_set(one)), None)

    def _is_free(self, node: ast.AST) -> bool:
        """Whether its order makes no difference: ``sum(one for one in names)``."""
        above = self._function.parents.get(node)
        is_taken = isinstance(above, ast.Call) and node in above.args and last_name(above.func) in _UNORDERED
        return is_taken and not any(isinstance(one, ast.Await) for one in walk(node))

    def _is_set(self, node: ast.expr | None, depth: int = 0) -> bool:  # noqa: PLR0911 - one for each kind
        match node:
            case ast.Set(elts=elements):
                return not all(isinstance(one, ast.Constant) and isinstance(one.value, int) for one in elements)
            case ast.SetComp():
                return True
            case ast.Call(func=ast.Attribute(value=of, attr=name)):
                return (name in _SET_METHODS or name == "copy") and self._is_set(of, depth)
            case ast.Call(func=func, args=args):
                is_set = last_name(_without_types(func)) in {"set", "frozenset"}
                return is_set and not any(last_name(getattr(one, "func", None)) == "range" for one in args)
            case ast.BinOp(left=left, op=ast.BitOr() | ast.BitAnd() | ast.Sub() | ast.BitXor(), right=right):
                return self._is_set(left, depth) or self._is_set(right, depth)
            case ast.IfExp(body=first, orelse=second):
                return self._is_set(first, depth) or self._is_set(second, depth)
            case ast.Name(id=name):
                return depth < 4 and self._is_kept_set(name, depth + 1)  # noqa: PLR2004 - names of names
            case _:
                return False

    def _is_kept_set(self, name: str, depth: int) -> bool:
        annotation = self._annotated.get(name)
        if annotation is not None:
            of = annotation.value if isinstance(annotation, ast.Subscript) else annotation
            element = last_name(annotation.slice) if isinstance(annotation, ast.Subscript) else ""
            return last_name(of) in _SET_TYPES and element not in _ORDERED
        kept = self._function.assignments.get(name, [])
        return bool(kept) and all(self._is_set(one, depth) for one in kept)


@rule("PEN026", "Keep it in a local variable, or in a table: await ctx.run_mutation(…).")
def no_globals(facts: Facts, rule: Rule) -> Places:
    """A workflow changes a global."""
    for body, root in _bodies(facts):
        function = body.function
        declared = {name for one in function.statements if isinstance(one, ast.Global) for name in one.names}
        own = {one.id for one in function.nodes if isinstance(one, ast.Name) and not isinstance(one.ctx, ast.Load)}
        own |= {one.arg for one in function.nodes if isinstance(one, ast.arg)}
        own |= {one.name for one in function.nodes if isinstance(one, AnyDef) and one is not function.node}
        for node in function.nodes:
            for name, place in _find_changes(node):
                is_shared = name in declared if isinstance(place, ast.Name) else name not in own - declared
                if is_shared and (isinstance(place, ast.Name) or _is_shared(facts, body, node, place)):
                    message = f"{name} is shared by all runs, and each replay of {root.name} changes it again."
                    yield rule.at(body, place, message)


def _find_changes(node: ast.AST) -> Iterator[tuple[str, ast.expr]]:
    """The names whose values a statement or a call changes, each with what it changes of it."""
    match node:
        case ast.Assign(targets=targets) | ast.Delete(targets=targets):
            changed = targets
        case ast.AugAssign(target=target) | ast.AnnAssign(target=target, value=ast.expr()):
            changed = [target]
        case ast.Call(func=ast.Attribute(attr=name) as method) if name in _CHANGES:
            changed = [method]
        case _:
            changed = []
    for one in changed:
        inner = one
        while isinstance(inner, ast.Attribute | ast.Subscript):
            inner = inner.value
        if isinstance(inner, ast.Name):
            yield inner.id, one


def _is_shared(facts: Facts, body: Body, node: ast.AST, place: ast.expr) -> bool:
    """Whether what is changed is a part of a global; of calls, one of a list, a dictionary or their like."""
    inner = place
    while isinstance(inner, ast.Attribute | ast.Subscript):
        inner = inner.value
    found = facts.program.meaning(body.function.module, inner)
    if not isinstance(node, ast.Call):
        return found is not None
    bound = facts.program.value_bound_to(found) if isinstance(found, Place) else None
    value = bound[1] if bound else None
    if isinstance(value, ast.Call):
        return last_name(_without_types(value.func)) in _MUTABLE
    return isinstance(value, ast.Dict | ast.List | ast.Set | ast.ListComp | ast.DictComp | ast.SetComp)


def _without_types(node: ast.expr) -> ast.expr:
    """``set`` of ``set[str]``."""
    return node.value if isinstance(node, ast.Subscript) else node
