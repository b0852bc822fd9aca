"""The files of a program, and what the names in them stand for, also if they come from another file.

Owns finding files, reading them and following imports. It never runs or imports the program.
"""

from __future__ import annotations

import ast
import builtins
import os
import sys
from collections.abc import Callable, Iterable, Iterator, Mapping
from contextlib import suppress
from dataclasses import dataclass, field
from functools import cache, partial
from pathlib import Path

from penstock.check.nodes import calls_in

_SKIPPED = {"__pycache__", "node_modules", "site-packages", "venv", "build", "dist"}
_NOT_OURS = {"penstock", *sys.stdlib_module_names}  # no file of a program is asked for by these names
_DEEPEST = 20  # imports that only pass a name on


@dataclass(frozen=True, slots=True)
class Place:
    """A name at the top of a file, and the statement that binds it."""

    module: Module
    name: str
    node: ast.AST


@dataclass(eq=False, slots=True)
class Module:
    """One file."""

    path: Path
    name: str
    text: str
    tree: ast.Module
    lines: list[str]
    names: dict[str, ast.AST] = field(default_factory=dict)
    everything_of: list[str] = field(default_factory=list)  # modules of `from … import *`

    def calls_of(self, *methods: str) -> Iterator[ast.Call]:
        """The calls of methods with these names, wherever they stand in the file."""
        calls = calls_in(self.tree) if any(one in self.text for one in methods) else ()
        yield from (one for one in calls if isinstance(one.func, ast.Attribute) and one.func.attr in methods)


@dataclass(frozen=True, slots=True)
class Outside:
    """Something that no file of the program holds, by its dotted name, such as ``penstock.MutationCtx``."""

    name: str


class Project:
    """The files of a program."""

    def __init__(self, paths: Iterable[Path], unsaved: Mapping[Path, str]) -> None:
        self.modules: list[Module] = []  # the files that are asked for, and after them the files that these import
        self.broken: dict[Path, tuple[SyntaxError, list[str]]] = {}  # with the lines, if they can be read
        self._by_tail: dict[str, list[Module]] = {}
        self._found: dict[tuple[str, str], Module | None] = {}
        self._meant: dict[tuple[Module, str], Place | Module | Outside | None] = {}
        self._unsaved = unsaved
        self.asked = files_of(paths)  # the files that are asked for
        self._known = {one.resolve() for one in self.asked}
        for path in self.asked:
            self._read(path)
        self._read_imported()

    def _read_imported(self) -> None:
        """Read what the files import: a name means the same, whichever of them are asked for."""
        file_of = cache(partial(_file_of, cache(_names_in)))
        for module in self.modules:  # there are more meanwhile
            folder, above = module.path.parent.resolve(), module.name.rpartition(".")[0]
            for source, names in _imports(module):
                found = self._find(source, above) or self._read_new(file_of(folder, source))
                if found is None or found.path.stem == "__init__":
                    for name in (f"{source}.{one}" for one in names):
                        if not self._find(name, above):
                            self._read_new(file_of(folder, name))

    def _read_new(self, path: Path | None) -> Module | None:
        if path is None or path in self._known:
            return None
        self._known.add(path)
        self._read(path)
        return self.modules[-1] if self.modules[-1].path is path else None

    def _read(self, path: Path) -> None:
        lines: list[str] = []
        text = self._unsaved.get(path.resolve()) if self._unsaved else None
        try:
            text = (path.read_bytes().decode() if text is None else text).removeprefix("\ufeff")
            lines = text.replace("\r\n", "\n").replace("\r", "\n").split("\n")  # a form feed ends none
            tree = ast.parse(text, str(path))
        except UnicodeDecodeError:
            self.broken[path] = SyntaxError("the file is not UTF-8"), lines
            return
        except OSError as error:
            self.broken[path] = SyntaxError(error.strerror), lines
            return
        except (RecursionError, MemoryError):
            self.broken[path] = SyntaxError("its expressions are nested too deeply"), lines
            return
        except (SyntaxError, ValueError) as error:
            self.broken[path] = error if isinstance(error, SyntaxError) else SyntaxError(str(error)), lines
            return
        module = Module(path, _module_name(path), text, tree, lines)
        _bind(module, tree.body)
        self.modules.append(module)
        self._by_tail.setdefault(module.name.rpartition(".")[2], []).append(module)

    def find(self, name: str, near: Module) -> Module | None:
        """The file that ``import name`` in a file near it means.

        Nobody knows the program's search path here: it is taken to hold the folders above that file, and their
        ``src``. A file elsewhere is meant if no other has that name.
        """
        key = (name, near.name.rpartition(".")[0])
        if key not in self._found:
            self._found[key] = self._find(*key)
        return self._found[key]

    def _find(self, name: str, above: str) -> Module | None:
        top, tail = name.partition(".")[0], name.rpartition(".")[2]
        if top == "penstock":
            return None
        found = [one for one in self._by_tail.get(tail, ()) if f".{one.name}".endswith(f".{name}")]
        if not found:
            return None
        roots = {one.name.removesuffix(name): one for one in found}
        while above:
            for root in (f"{above}.", f"{above}.src."):
                if root in roots:
                    return roots[root]
            above = above.rpartition(".")[0]
        return found[0] if len(found) == 1 and top not in sys.stdlib_module_names else None

    def look_up(self, module: Module, name: str) -> Place | Module | Outside | None:
        """The meaning of a name at the top of a file; None if nothing there binds it."""
        if (module, name) not in self._meant:
            self._meant[module, name] = self._look_up(module, name, 0)
        return self._meant[module, name]

    def _look_up(self, module: Module, name: str, depth: int) -> Place | Module | Outside | None:
        if depth > _DEEPEST:
            return None
        node = module.names.get(name)
        if isinstance(node, (ast.Import, ast.ImportFrom)):
            return self.resolve_import(module, node, name, depth)
        return self._of_stars(module, name, depth) if node is None else Place(module, name, node)

    def _of_stars(self, module: Module, name: str, depth: int) -> Place | Module | Outside | None:
        for source in module.everything_of:
            inner = self.find(source, module)
            if inner is None and source.partition(".")[0] == "penstock" and not hasattr(builtins, name):
                return Outside(f"penstock.{name}")
            found = self._look_up(inner, name, depth + 1) if inner else None
            if found is not None:
                return found
        return None

    def resolve_import(
        self, module: Module, node: ast.Import | ast.ImportFrom, name: str, depth: int = 0
    ) -> Place | Module | Outside | None:
        """The meaning of a name that this statement binds."""
        if isinstance(node, ast.Import):
            whole = next((one.name for one in node.names if one.asname == name), name)
            return self.find(whole, module) or Outside(whole)
        source = _absolute(module, node)
        original = next((one.name for one in node.names if (one.asname or one.name) == name), name)
        inner, whole = self.find(source, module), f"{source}.{original}"
        found = self._look_up(inner, original, depth + 1) if inner else None
        return found or self.find(whole, module) or (None if inner else Outside(whole))

    def member(self, owner: Module | Outside, name: str, near: Module) -> Place | Module | Outside | None:
        """The meaning of an attribute of a module."""
        if isinstance(owner, Outside):
            return self.find(f"{owner.name}.{name}", near) or Outside(f"{owner.name}.{name}")
        return self.look_up(owner, name) or self.find(f"{owner.name}.{name}", near)


def files_of(paths: Iterable[Path]) -> list[Path]:
    """The Python files at these paths and below them, each once, without those of environments and caches."""
    return list(dict.fromkeys(one for path in paths for one in ([path] if path.is_file() else _below(path))))


def _below(folder: Path) -> Iterator[Path]:
    for place, folders, files in os.walk(folder):
        folders[:] = sorted(one for one in folders if not one.startswith(".") and one not in _SKIPPED)
        yield from (Path(place, one) for one in sorted(files) if one.endswith(".py") and one[0] != ".")


def _imports(module: Module) -> Iterator[tuple[str, list[str]]]:
    """The modules that the top of a file imports, each with the names in it, which may be modules too."""
    found = [(one, list[str]()) for one in module.everything_of]
    for node in dict.fromkeys(module.names.values()):
        if isinstance(node, ast.Import):
            found += [(one.name, []) for one in node.names]
        elif isinstance(node, ast.ImportFrom):
            found.append((_absolute(module, node), [one.name for one in node.names]))
    return (one for one in found if one[0].partition(".")[0] not in _NOT_OURS)


def _file_of(names_in: Callable[[Path], set[str]], folder: Path, name: str) -> Path | None:
    """The file that an import in a folder means; see `Project.find`."""
    parts = name.split(".")
    for root in (root for above in (folder, *folder.parents) for root in (above, above / "src")):
        if parts[0] in names_in(root) or f"{parts[0]}.py" in names_in(root):
            whole = root.joinpath(*parts)
            for file in (whole.with_suffix(".py"), whole / "__init__.py"):
                if file.is_file():
                    return file
    return None


def _names_in(folder: Path) -> set[str]:
    with suppress(OSError):  # there is no such folder, or nobody may look into it
        return {one.name for one in folder.iterdir()}
    return set()


def _module_name(path: Path) -> str:
    """All folders above a file, and its own name: an import names the end of this."""
    whole = path.resolve()
    return ".".join((whole.parent if path.stem == "__init__" else whole.with_suffix("")).parts[1:])


def _bind(module: Module, body: list[ast.stmt]) -> None:  # noqa: C901 - one case for each kind of statement
    for node in body:
        match node:
            case ast.FunctionDef() | ast.AsyncFunctionDef() | ast.ClassDef():
                module.names[node.name] = node
            case ast.Import():
                for one in node.names:
                    module.names[one.asname or one.name.partition(".")[0]] = node
            case ast.ImportFrom():
                for one in node.names:
                    if one.name == "*":
                        module.everything_of.append(_absolute(module, node))
                    else:
                        module.names[one.asname or one.name] = node
            case ast.Assign():
                module.names.update(_pairs(node))
            case ast.AnnAssign(target=ast.Name(id=name)):
                module.names[name] = node
            case ast.If() | ast.With() | ast.For() | ast.While():
                _bind(module, [*node.body, *getattr(node, "orelse", [])])
            case ast.Try():
                # What a fallback binds is rarely what runs: the first binding stays.
                fallbacks = [one for handler in node.handlers for one in handler.body]
                _bind(module, [*fallbacks, *node.body, *node.orelse, *node.finalbody])


def _pairs(node: ast.Assign) -> Iterator[tuple[str, ast.Assign]]:
    """The names that an assignment binds, each with an assignment of its own: ``A, B = 1, 2``."""
    for target in node.targets:
        if isinstance(target, ast.Name):
            yield target.id, node
        elif isinstance(target, ast.Tuple) and isinstance(node.value, ast.Tuple):
            for name, value in zip(target.elts, node.value.elts, strict=False):
                yield from _pairs(ast.copy_location(ast.Assign([name], value), node))


def _absolute(module: Module, node: ast.ImportFrom) -> str:
    if not node.level:
        return node.module or ""
    is_package = module.path.stem == "__init__"
    parts = module.name.split(".")
    base = parts[: len(parts) - node.level + (1 if is_package else 0)]
    return ".".join([*base, *([node.module] if node.module else [])])
