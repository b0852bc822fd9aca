"""Zips of tables and files: as `penstock export` writes them, and as it or Convex wrote them.

Owns the names of their entries. Parts of a component of Convex are called ``notes/remarks`` and
``notes/_storage``. Leaves what the lines mean to `convex`, `files` and `penstock.cli.data`.
"""

from __future__ import annotations

import contextlib
import json
import re
import zipfile
import zlib
from collections.abc import Iterator
from functools import cached_property
from pathlib import Path
from typing import IO, Self

from pydantic_core import from_json

from penstock.cli.lines import Lines
from penstock.errors import ConfigError
from penstock.functions.component import SEPARATOR

_MANIFEST = "penstock.json"
_TABLES = "_tables/documents.jsonl"  # by which a snapshot of Convex is known
_ROWS = "/documents.jsonl"
FILES, _STORAGE = "_files", "_storage"  # the folders of files, in penstock's zips and in Convex's
_COMPONENTS = "_components/"  # before the name of one of Convex's, in whose folder its tables and files are
_PART = re.compile(rf"((?:{_COMPONENTS}[^/]+/)*)([^/]+)/")
_MOST_AT_ONCE = 16 * 1024 * 1024  # bytes of an entry that is read whole
_DAMAGE: tuple[type[Exception], ...] = (zipfile.BadZipFile, zlib.error, EOFError)
_FORM = (LookupError, TypeError, ValueError)  # of JSON that says something else than it should


class SnapshotWriter:
    """A zip of tables and files, as it is written. The manifest comes last, so that half a zip has none."""

    def __init__(self, stream: IO[bytes]) -> None:
        self._zip = zipfile.ZipFile(stream, "w", zipfile.ZIP_DEFLATED)
        self._tables: list[str] = []

    def add_table(self, table: str) -> IO[bytes]:
        """Open the entry of a table, which takes its lines."""
        self._tables.append(table)
        return self._zip.open(f"{table}.jsonl", "w", force_zip64=True)

    def add_file(self, file_id: str) -> IO[bytes]:
        """Open the entry of a file, which takes its bytes; they are stored as they are, as pictures do not shrink."""
        return self._zip.open(zipfile.ZipInfo(f"{FILES}/{file_id}"), "w", force_zip64=True)

    def add_documents(self) -> IO[bytes]:
        """Open the entry that takes the documents of the files."""
        return self._zip.open(f"{FILES}{_ROWS}", "w", force_zip64=True)

    def __enter__(self) -> Self:
        return self

    def __exit__(self, kind: type[BaseException] | None, *_error: object) -> None:
        if kind is None:
            self._zip.writestr(_MANIFEST, json.dumps({"format": 1, "tables": self._tables}))
        self._zip.close()


class Snapshot:
    """A zip of tables, each as JSON lines, and of files.

    Attributes:
        of_convex: Whether Convex wrote it.
        tables: The names of its tables.
        files: The names of its folders of files; Convex has one for each component.
    """

    def __init__(self, path: Path) -> None:
        try:
            self._zip = zipfile.ZipFile(path)
        except (OSError, zipfile.BadZipFile) as error:
            raise ConfigError(f"{path} cannot be read: {error}.") from None
        names = self._names = dict.fromkeys(self._zip.namelist())
        self.of_convex = _MANIFEST not in names
        self._root, self._others = "", set[str]()
        if not self.of_convex:
            with self._reading(_MANIFEST, *_FORM):
                manifest = from_json(self._read(_MANIFEST))
                number, self._entries = manifest["format"], {table: f"{table}.jsonl" for table in manifest["tables"]}
            self.tables, self.files = [*self._entries], [FILES] if f"{FILES}{_ROWS}" in names else []
            if number != 1:
                raise ConfigError(f"{path} was written by a newer penstock.", fix="Upgrade penstock, and import again.")
            return
        roots = [
            name.removesuffix(_TABLES)
            for name in names
            if name.endswith(_TABLES) and f"/{_COMPONENTS}" not in f"/{name}"
        ]
        if len(roots) != 1:
            fix = "Write it with penstock export -o FILE.zip, or with npx convex export."
            raise ConfigError(f"{path} has neither {_MANIFEST} nor {_TABLES}.", fix=fix)
        (self._root,) = roots
        self._entries, self.tables, self.files = {}, [], []
        for name in names:
            self._note_part(name)

    def _note_part(self, name: str) -> None:
        found = _PART.match(name, len(self._root)) if name.startswith(self._root) else None
        if found is None:
            return
        folder, table = found.groups()
        part = SEPARATOR.join([*folder.split("/")[1::2], table])
        if name == f"{self._root}{found[0].removesuffix('/')}{_ROWS}" and (
            table == _STORAGE or not table.startswith("_")
        ):
            self._entries[part] = name
            (self.files if table == _STORAGE else self.tables).append(part)
        elif table.startswith("_") and table not in {"_tables", _STORAGE}:
            self._others.add(part)

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_error: object) -> None:
        self._zip.close()

    @contextlib.contextmanager
    def lines(self, table: str) -> Iterator[Lines]:
        with self._opening(self._entries.get(table, f"{table}{_ROWS}")) as (stream, size):
            yield Lines(stream, size)

    def file_size(self, file_id: str) -> int | None:
        """The size of a file's bytes; None if they are not there."""
        name = self._file_entries.get(file_id)
        return None if name is None else self._zip.getinfo(name).file_size

    @contextlib.contextmanager
    def file(self, file_id: str) -> Iterator[IO[bytes]]:
        """Open the bytes of a file."""
        with self._opening(self._file_entries[file_id]) as (stream, _size):
            yield stream

    @cached_property
    def _file_entries(self) -> dict[str, str]:
        """The entries of the files' bytes by their ids; Convex adds an ending that goes with the type."""
        folders = tuple(self._entries.get(one, f"{one}{_ROWS}").removesuffix(_ROWS) + "/" for one in self.files)
        inside = [name for name in self._names if name.startswith(folders) and not name.endswith(_ROWS)]
        return {name.rpartition("/")[2].partition(".")[0]: name for name in inside}

    @contextlib.contextmanager
    def _opening(self, name: str) -> Iterator[tuple[IO[bytes], int]]:
        with self._reading(name, KeyError, RuntimeError):  # it is not there, or encrypted
            stream, size = self._zip.open(name), self._zip.getinfo(name).file_size
        with self._reading(name), stream:
            yield stream, size

    def _read(self, name: str) -> bytes:
        """Read a small entry whole."""
        if self._zip.getinfo(name).file_size > _MOST_AT_ONCE:
            raise ConfigError(
                f"{self._zip.filename}: {name} has more than {_MOST_AT_ONCE:,} bytes.", fix="Export again."
            )
        return self._zip.read(name)

    def others(self) -> list[str]:
        """The parts that are not imported."""
        return sorted(self._others)

    def numbers(self, component: str) -> dict[int, str]:
        """The names of Convex's tables in a component, or in none, by the numbers in their ids."""
        path = component.split(SEPARATOR) if component else []
        name = f"{self._root}{''.join(f'{_COMPONENTS}{one}/' for one in path)}{_TABLES}"
        if name not in self._names:
            return {}
        with self._reading(name, *_FORM):
            found = map(from_json, self._read(name).splitlines())
            return {int(one["id"]): SEPARATOR.join([*path, one["name"]]) for one in found}

    def is_typed(self, table: str) -> bool:
        """Whether integers in the rows are told from floats by their spelling."""
        name = f"{self._entries[table].removesuffix(_ROWS)}/generated_schema.jsonl"
        if name not in self._names:
            return False
        if self._read(name).strip() != b'"uniform"':
            fix = "Export it again with a Convex of 2024 or later."
            raise ConfigError(f"{name} is of an old form, which says the types of numbers apart from them.", fix=fix)
        return True

    @contextlib.contextmanager
    def _reading(self, name: str, *errors: type[Exception]) -> Iterator[None]:
        """Name an entry that is damaged, or has one of these errors."""
        try:
            yield
        except (*_DAMAGE, *errors) as error:
            what = f"{self._zip.filename}: {name} cannot be read: {error}."
            raise ConfigError(what, fix="Export again, and copy the file whole.") from error
