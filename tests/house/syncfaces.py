"""Writes the synchronous faces: the classes that code without await uses, made of the asynchronous ones.

Each public word of a class is a word of its face, waits, and gives the result. A word that does no more is made by
`waits`, one that nobody awaits by `passes`, a property by `Given`. Rules here say how types and parameters of the
others differ. `BODIES` holds the few words that follow no rule.
"""

from __future__ import annotations

import ast
import subprocess
import sys
from collections.abc import Iterator
from copy import deepcopy
from dataclasses import dataclass
from pathlib import Path

PACKAGE = Path(__file__).parents[2] / "src" / "penstock"
HINT = "PENSTOCK_WRITE_SYNC=1 python -m pytest tests/house/test_house_sync.py"


@dataclass(frozen=True)
class Way:
    """How a face comes to the asynchronous object that it stands for."""

    twin: str
    wait: str
    first: str = ""


HELD = Way("self._twin", "self._wait")
OPENED = Way("thread.backend", "thread.wait", "thread = self._thread()\n")  # both of one thread: another may close it


@dataclass(frozen=True)
class Page:
    """A generated file: its duty, and the classes whose faces it has, by their modules."""

    duty: str
    classes: dict[str, str]
    way: Way = HELD


PAGES = {
    "calls/run/syncdb.py": Page(
        "`ctx.db` of functions written with def.",
        {
            "transaction.database": "DatabaseReader DatabaseWriter",
            "transaction.scan": "Scan",
            "transaction.aggregates": "Groups",
        },
    ),
    "calls/run/syncctx.py": Page(
        "The ctx of functions written with def: they run in threads, and their calls on the event loop.",
        {
            "calls.run.work": "ActionWork",
            "calls.run.auth": "Auth",
            "calls.enqueue.scheduler": "Scheduler",
            "calls.enqueue.messages": "Sender",
            "calls.run.context": "QueryCtx MutationCtx ActionCtx",
        },
    ),
    "calls/handlers/synctasks.py": Page(
        "The ctx of reactive tasks written with def.",
        {"calls.handlers.taskctx": "TaskCtx MutationTaskCtx TaskBatchRun TaskBatchCtx"},
    ),
    "api/syncwords.py": Page(
        "The methods of a running app for programs that do not await.", {"api.backend": "CallerBackend"}, OPENED
    ),
}
FACES = {name: f"Sync{name}" for page in PAGES.values() for names in page.classes.values() for name in names.split()}
TWINS = {**FACES, "LockBlock": "SyncLockBlock", "Watch": "SyncWatch"}
# Names that a face uses and its class does not.
NEEDED = {
    "Face": "penstock.calls.run.bridge",
    "Given": "penstock.calls.run.bridge",
    "Iterator": "collections.abc",
    "SyncLockBlock": "penstock.calls.locks.blocks",
    "SyncWatch": "penstock.api.live",
    "Thread": "penstock.api.syncthread",
    "Wait": "penstock.calls.run.bridge",
    "finish": "penstock.store.guest.session",
    "guest_session": "penstock.store.guest.session",
    "in_thread": "penstock.calls.run.bridge",
    "passes": "penstock.calls.run.bridge",
    "waits": "penstock.calls.run.bridge",
}
BODIES = {
    "TaskCtx.mark_completed": """
if connection is None:
    self._wait(self._twin.mark_completed())
    return
guest_session(connection).check_sync()
finish(self._twin.mark_completed(connection))""",
    "TaskBatchCtx.get_documents": """
faces = dict(zip(self._twin.runs, self.runs, strict=True))
return {faces[run]: row for run, row in self._wait(self._twin.get_documents(fields)).items()}""",
    "CallerBackend.live": """
watch = thread.do(lambda: thread.backend.live(function, *args, **kwargs))
return SyncWatch(watch, thread.wait)""",
    "CallerBackend.with_identity": """
face = SyncCallerBackend()
face._thread = lambda: thread.with_identity(identity)  # type: ignore[method-assign]
return face""",
    "CallerBackend.wake": "\nthread.do(thread.backend.wake)",
}
DROPPED = {"on_lost"}  # nothing ends a thread from outside
REQUIRED = {"seconds"}
NOTES = {  # of parameters
    "on_lost": " No thread is cancelled: `LockLost` comes at the end of the block.",
    "seconds": " Not without an end, as nothing else ends the wait of a thread.",
    "connection": " A connection is one without ``await``.",
}


class _Renamed(ast.NodeTransformer):
    """A type as a face has it."""

    def visit_Name(self, node: ast.Name) -> ast.Name:
        return ast.Name(TWINS.get(node.id, node.id))


def renamed(node: ast.expr | None) -> str:
    return ast.unparse(_Renamed().visit(deepcopy(node))) if node is not None else "None"


def head(node: ast.expr | None) -> str:
    """The name of a type, without what it is of."""
    return ast.unparse(node.value if isinstance(node, ast.Subscript) else node) if node is not None else ""


def result_of(node: ast.FunctionDef | ast.AsyncFunctionDef) -> tuple[ast.expr | None, bool]:
    """What the word gives in the end, and whether that is waited for."""
    given = node.returns
    if isinstance(given, ast.Subscript) and head(given) == "Coroutine" and isinstance(given.slice, ast.Tuple):
        return given.slice.elts[-1], True
    return given, isinstance(node, ast.AsyncFunctionDef) and head(given) != "AsyncIterator"


def faced(value: str, kind: ast.expr | None, wait: str) -> str:
    """A value as the face gives it."""
    name = head(kind)
    if name == "JobCalls":
        return f"{value}.waiting({wait})"
    if name == "AsyncIterator":
        return f"in_thread({value}, {wait})"
    if name == "list" and isinstance(kind, ast.Subscript) and head(kind.slice) in TWINS:
        return f"[{faced('one', kind.slice, wait)} for one in {value}]"
    return f"{TWINS[name]}({value}, {wait})" if name in TWINS else value


def given_by(of: str, kind: ast.expr | None) -> str:
    """A property of a face."""
    name = head(kind)
    made = "JobCalls.waiting" if name == "JobCalls" else TWINS.get(name)
    return f"Given[{renamed(kind)}]({of})" if made is None else f"Given({of}, {made})"


def parameters(args: ast.arguments) -> tuple[str, str]:
    """The parameters as the face takes them, and as it passes them on."""
    args = deepcopy(args)
    named = [
        (one, value) for one, value in zip(args.kwonlyargs, args.kw_defaults, strict=True) if one.arg not in DROPPED
    ]
    args.kwonlyargs, args.kw_defaults = [one for one, _ in named], [value for _, value in named]
    places = args.posonlyargs + args.args
    for one in places:
        if one.arg in REQUIRED:
            one.annotation = ast.Name("float")
            args.defaults.pop()
    # The thread iterates, as that may wait.
    passed = [f"list({one.arg})" if head(one.annotation) == "Iterable" else one.arg for one in places[1:]]
    passed += [f"*{args.vararg.arg}"] if args.vararg else []
    passed += [f"{one.arg}={one.arg}" for one in args.kwonlyargs]
    passed += [f"**{args.kwarg.arg}"] if args.kwarg else []
    return ast.unparse(_Renamed().visit(args)), ", ".join(passed)


def same_for_both(owner: ast.ClassDef, node: ast.FunctionDef | ast.AsyncFunctionDef) -> bool:
    """Whether a word of a face takes and gives what the word of the class does, but for waiting.

    What it says of the type of a generic class would be lost.
    """
    taken, given = node.args, result_of(node)[0]
    named = [*taken.posonlyargs, *taken.args, *taken.kwonlyargs]
    return (
        f"{owner.name}.{node.name}" not in BODIES
        and not (any("[T]" in ast.unparse(one) for one in owner.bases) and "T" in names_in([ast.unparse(node)]))
        and DROPPED.union(REQUIRED).isdisjoint(one.arg for one in named)
        and not any(head(one.annotation) == "Iterable" for one in named)
        and renamed(given) == (ast.unparse(given) if given is not None else "None")
    )


def word(owner: ast.ClassDef, node: ast.FunctionDef | ast.AsyncFunctionDef, way: Way) -> Iterator[str]:
    """A word of a face."""
    taken, passed = parameters(node.args)
    kind, waits = result_of(node)
    if any(ast.unparse(one) == "property" for one in node.decorator_list):
        yield f"{node.name} = {given_by(f'{owner.name}.{node.name}', kind)}"
        return
    if same_for_both(owner, node):
        yield f"{node.name} = {'waits' if waits else 'passes'}({owner.name}.{node.name})"
        return
    call = f"{way.twin}.{node.name}({passed})"
    value = f"{way.wait}({call})" if waits else faced(call, kind, way.wait)
    silent = renamed(kind) in {"None", "NoReturn"}
    notes = "".join(NOTES.get(one.arg, "") for one in node.args.args + node.args.kwonlyargs)
    name, given = node.name.replace("__aiter__", "__iter__"), renamed(kind).replace("AsyncIterator", "Iterator")
    yield f"def {name}({taken}) -> {given}:"
    yield f'    """See `{owner.name.removesuffix("Words")}.{node.name}`.{notes}"""'
    body = way.first + BODIES.get(f"{owner.name}.{node.name}", f"\n{'' if silent else 'return '}{value}").lstrip("\n")
    yield from (f"    {line}" for line in body.splitlines())


def beginning(node: ast.ClassDef, near: dict[str, ast.ClassDef], way: Way) -> Iterator[str]:
    """Attributes and ``__init__`` of a face; what it is made of is told by the class and its bases without a face."""
    bases = [head(one) for one in node.bases]
    fields = [one for one in node.body if isinstance(one, ast.AnnAssign) and head(one.annotation) in {*TWINS, "list"}]
    for one in (one for one in fields if head(one.annotation) in TWINS):
        yield f"{ast.unparse(one.target)} = Given({ast.unparse(one.target)!r}, {renamed(one.annotation)})"
    fields = [one for one in fields if head(one.annotation) not in TWINS]
    yield from (f"{ast.unparse(one.target)}: {renamed(one.annotation)}" for one in fields)
    yield from (ast.unparse(one) for one in node.body if isinstance(one, ast.Assign) and "__" not in ast.unparse(one))
    if way is OPENED:
        yield from ("def _thread(self) -> Thread:", "    raise NotImplementedError")
        yield f"def _reach(self) -> tuple[{node.name}, Wait]:"
        yield from ("    thread = self._thread()", "    return thread.backend, thread.wait")
        return
    for base in (near[name] for name in bases if name in near and name not in FACES):
        for one in (field for field in base.body if isinstance(field, ast.AnnAssign)):
            name = ast.unparse(one.target)
            yield f"{name} = Given[{renamed(one.annotation)}]({name!r})"
    lines = [
        f"    self.{name} = {faced(f'twin.{name}', field.annotation, 'wait')}"
        for field in fields
        for name in [ast.unparse(field.target)]
    ]
    if not FACES.keys().isdisjoint(bases):
        yield f"_twin: {own(node)}"
    if lines:
        yield f"def __init__(self, twin: {own(node)}, wait: Wait) -> None:"
        yield "    super().__init__(twin, wait)"
        yield from lines


def own(node: ast.ClassDef) -> str:
    """A class as the type of what a face stands for."""
    return f"{node.name}[T]" if any("[T]" in ast.unparse(one) for one in node.bases) else node.name


def face(node: ast.ClassDef, near: dict[str, ast.ClassDef], way: Way) -> Iterator[str]:
    """The face of a class."""
    yield from (f"@{ast.unparse(one)}" for one in node.decorator_list)
    named = [renamed(one) for one in node.bases]
    if way is HELD and FACES.keys().isdisjoint(map(head, node.bases)):
        named = [f"Face[{own(node)}]", *(one for one in named if one != "OfRun" and not one.startswith("Generic["))]
    bases = ", ".join(named)
    yield f"class {FACES[node.name]}{f'({bases})' if bases else ''}:"
    yield f'    """`{node.name.removesuffix("Words")}` for code that does not await."""'
    yield from (f"    {line}" for line in beginning(node, near, way))
    for one in node.body:
        if isinstance(one, ast.FunctionDef | ast.AsyncFunctionDef) and (one.name[0] != "_" or one.name == "__aiter__"):
            yield from (f"    {line}" for line in word(node, one, way))


def written(path: str) -> str:
    """The text of a page."""
    page, homes, types, body = PAGES[path], dict(NEEDED), dict[str, str](), list[str]()
    for other in PAGES.keys() - {path}:
        homes |= {FACES[name]: module_of(other) for names in PAGES[other].classes.values() for name in names.split()}
    for module, names in page.classes.items():
        tree = ast.parse((PACKAGE / f"{module.replace('.', '/')}.py").read_text("utf-8"))
        near = {one.name: one for one in tree.body if isinstance(one, ast.ClassDef)}
        for one in tree.body:
            if isinstance(one, ast.ImportFrom):
                homes |= {alias.name: str(one.module) for alias in one.names}
            elif isinstance(one, ast.Assign) and ast.unparse(one.value).startswith(("TypeVar(", "ParamSpec(")):
                types[ast.unparse(one.targets[0])] = ast.unparse(one)
        homes |= dict.fromkeys(near, f"penstock.{module}")
        body += [line for name in names.split() for line in face(near[name], near, page.way)]
    types = {name: text for name, text in types.items() if name in names_in(body)}
    lines = [*types.values(), *body]
    imports = [f"from {homes[name]} import {name}" for name in sorted(names_in(lines) & homes.keys())]
    duty = f'"""{page.duty}\n\nGenerated, with `{HINT}`.\n"""'
    text = "\n".join((duty, "from __future__ import annotations", *imports, *lines))
    return formed(formed(text, "check", "--fix-only", "--select=I"), "format")


def module_of(path: str) -> str:
    return f"penstock.{path.removesuffix('.py').replace('/', '.')}"


def names_in(lines: list[str]) -> set[str]:
    """The names that lines of code use."""
    return {
        node.id
        for node in ast.walk(ast.parse("\n".join(lines)))
        if isinstance(node, ast.Name) and isinstance(node.ctx, ast.Load)
    }


def formed(text: str, *how: str) -> str:
    """Code as ruff writes it."""
    command = [sys.executable, "-m", "ruff", *how, "--quiet", f"--stdin-filename={PACKAGE / 'generated.py'}", "-"]
    done = subprocess.run(command, input=text, capture_output=True, text=True, check=True, cwd=PACKAGE)
    return done.stdout
