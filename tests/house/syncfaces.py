"""Writes the stubs of the faces: the signatures of the asynchronous classes, as code that does not await sees them.

`make check` runs this and fails if a stub is stale; `make format` runs it with ``--write``.
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
PAGES = "calls/run/syncctx.py", "calls/handlers/synctasks.py", "api/syncwords.py"
HEAD = "# The signatures of the faces. `make format` writes them from the asynchronous classes."
GIVEN = {"LockBlock": "penstock.calls.locks.blocks", "Watch": "penstock.api.live"}  # whose faces are written by hand
Function = ast.FunctionDef | ast.AsyncFunctionDef


@dataclass(frozen=True)
class Module:
    """The code of a module."""

    name: str
    body: list[ast.stmt]

    @property
    def classes(self) -> dict[str, ast.ClassDef]:
        return {one.name: one for one in self.body if isinstance(one, ast.ClassDef)}

    @property
    def homes(self) -> dict[str, str]:
        """The names that it uses or defines, each with the module that has it."""
        nodes = list(ast.walk(ast.Module(self.body, [])))
        imports = [one for one in nodes if isinstance(one, ast.ImportFrom)]
        assigned = [target for one in self.body if isinstance(one, ast.Assign) for target in one.targets]
        return {
            **{alias.name: str(one.module) for one in imports for alias in one.names},
            **dict.fromkeys([*self.classes, *map(ast.unparse, assigned)], self.name),
        }

    @property
    def type_variables(self) -> dict[str, str]:
        found = [one for one in self.body if isinstance(one, ast.Assign)]
        return {
            ast.unparse(one.targets[0]): ast.unparse(one)
            for one in found
            if ast.unparse(one.value).startswith(("TypeVar(", "ParamSpec("))
        }


def read(name: str) -> Module:
    """Read a module of penstock."""
    path = PACKAGE.parent.joinpath(*name.split(".")).with_suffix(".py")
    return Module(name, ast.parse(path.read_text("utf-8")).body)


def module_of(page: str) -> str:
    return f"penstock.{page.removesuffix('.py').replace('/', '.')}"


def of(face: ast.ClassDef) -> str:
    """The name of the class that a face stands for."""
    return next((ast.unparse(one.value) for one in face.keywords if one.arg == "of"), "")


def faces() -> dict[str, str]:
    """The classes that have faces, each with the module of its face."""
    pages = [read(module_of(page)) for page in PAGES]
    return GIVEN | {of(face): page.name for page in pages for face in page.classes.values()}


FACES = faces()


class _Renamed(ast.NodeTransformer):
    """A type as a face has it."""

    def visit_Name(self, node: ast.Name) -> ast.Name:
        return ast.Name(f"Sync{node.id}" if node.id in FACES else node.id.replace("AsyncIterator", "Iterator"))


def head(node: ast.expr | None) -> str:
    """The name of a type, without what it is of."""
    return ast.unparse(node.value if isinstance(node, ast.Subscript) else node) if node is not None else ""


def signature(node: Function, kind: ast.expr | None) -> str:
    name, given = node.name.replace("__aiter__", "__iter__"), "None" if kind is None else ast.unparse(kind)
    return f"def {name}({ast.unparse(node.args)}) -> {given}: ..."


def render_method(node: Function) -> Iterator[str]:
    """A method or a property of an asynchronous class, as its face has it."""
    kind = node.returns
    if isinstance(kind, ast.Subscript) and head(kind) == "Coroutine" and isinstance(kind.slice, ast.Tuple):
        kind = kind.slice.elts[-1]
    if any(ast.unparse(one) == "property" for one in node.decorator_list):
        yield "@property"
    yield signature(_Renamed().visit(deepcopy(node)), kind and _Renamed().visit(deepcopy(kind)))


def render_face(face: ast.ClassDef, twin: ast.ClassDef) -> Iterator[str]:
    """A face: what it writes itself, and the rest from the class that it stands for."""
    own = {one.name: one for one in face.body if isinstance(one, Function)}
    yield f"class {face.name}({', '.join(map(ast.unparse, face.bases))}):"
    for one in face.body:
        if isinstance(one, ast.AnnAssign):
            yield f"    {ast.unparse(one)}"
        elif isinstance(one, Function) and (one.name[0] != "_" or one.name == "__init__"):
            yield f"    {signature(one, one.returns)}"
    for one in twin.body:
        if isinstance(one, ast.AnnAssign) and head(one.annotation) in FACES:
            yield "    @property"
            yield f"    def {ast.unparse(one.target)}(self) -> Sync{ast.unparse(one.annotation)}: ..."
        elif isinstance(one, Function) and (one.name[0] != "_" or one.name == "__aiter__") and one.name not in own:
            yield from (f"    {line}" for line in render_method(one))
    yield "    ..."


def render(page: str) -> str:
    """The text of a stub."""
    module = read(module_of(page))
    homes, variables, body = {"Iterator": "collections.abc", **module.homes}, dict(module.type_variables), list[str]()
    for face in module.classes.values():
        twin = read(module.homes[of(face)])
        homes |= {name: home for name, home in twin.homes.items() if name not in homes}
        variables |= twin.type_variables
        body += render_face(face, twin.classes[of(face)])
    homes |= {f"Sync{name}": home for name, home in FACES.items()}
    body = [*(text for name, text in variables.items() if name in names_in(body)), *body]
    local = {*module.classes, *variables}
    imports = [f"from {homes[name]} import {name}" for name in sorted(names_in(body) & homes.keys() - local)]
    text = run_ruff("\n".join((HEAD, *imports, *body)), "check", "--fix-only", "--select=I,PYI013")
    return run_ruff(text, "format")


def names_in(lines: list[str]) -> set[str]:
    """The names that lines of code use."""
    nodes = ast.walk(ast.parse("\n".join(lines)))
    return {node.id for node in nodes if isinstance(node, ast.Name) and isinstance(node.ctx, ast.Load)}


def run_ruff(text: str, *how: str) -> str:
    """Code as ruff writes it."""
    command = [sys.executable, "-m", "ruff", *how, "--quiet", f"--stdin-filename={PACKAGE / 'stub.pyi'}", "-"]
    return subprocess.run(command, input=text, capture_output=True, text=True, check=True, cwd=PACKAGE).stdout


def main() -> int:
    """Write the stubs, or name those that are stale."""
    texts = {(PACKAGE / page).with_suffix(".pyi"): render(page) for page in PAGES}
    if "--write" in sys.argv:
        for path, text in texts.items():
            path.write_text(text, "utf-8")
        return 0
    stale = [path.name for path, text in texts.items() if not path.exists() or path.read_text("utf-8") != text]
    if stale:
        print(f"Stale stubs of faces: {', '.join(stale)}. Run make format.")
    return len(stale)


if __name__ == "__main__":
    sys.exit(main())
