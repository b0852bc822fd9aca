"""Zips of tables and files: as `penstock export` writes them, and as it or Convex wrote them.

Owns the names of their entries. Leaves what the lines mean to `convex`, `files` and `penstock.cli.data`.
"""

from __future__ import annotations

import contextlib
import json
import zipfile
import zlib
from collections.abc import Iterator
from functools import cached_property
from pathlib import Path
from typing import IO, Self

from pydantic_core import from_json

from penstock.cli.lines import Lines
from penstock.errors import ConfigError

_MANIFEST = "penstock.json"
_TABLES = "_tables/documents.jsonl"  # by which a snapshot of Convex is known
_ROWS = "/documents.jsonl"
FILES, _STORAGE = "_files", "_storage"  # the folders of files, in penstock's zips and in Convex's
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
        files: The name of the folder of its files; None if it has none.
    """

    def __init__(self, path: Path) -> None:
        try:
            self._zip = zipfile.ZipFile(path)
        except (OSError, zipfile.BadZipFile) as error:
            raise ConfigError(f"{path} cannot be read: {error}.") from None
        names = self._zip.namelist()
        self.of_convex = _MANIFEST not in names
        if not self.of_convex:
            self._root, self.files = "", FILES if f"{FILES}{_ROWS}" in names else None
            with self._reading(_MANIFEST, *_FORM):
                manifest = from_json(self._zip.read(_MANIFEST))
                number, self._entries = manifest["format"], {table: f"{table}.jsonl" for table in manifest["tables"]}
            if number != 1:
                raise ConfigError(f"{path} was written by a newer penstock.", fix="Upgrade penstock, and import again.")
            return
        roots = [name.removesuffix(_TABLES) for name in names if name.endswith(_TABLES) and "_components/" not in name]
        if len(roots) != 1:
            fix = "Write it with penstock export -o FILE.zip, or with npx convex export."
            raise ConfigError(f"{path} has neither {_MANIFEST} nor {_TABLES}.", fix=fix)
        (self._root,) = roots
        inside = [name.removeprefix(self._root) for name in names if name.startswith(self._root)]
        found = [name.removesuffix(_ROWS) for name in inside if name.endswith(_ROWS) and name.count("/") == 1]
        self._entries = {name: f"{self._root}{name}{_ROWS}" for name in found if not name.startswith("_")}
        self.files = _STORAGE if f"{_STORAGE}{_ROWS}" in inside else None
        self._others = {name.split("/")[0] for name in inside if name.startswith("_")} - {"_tables", self.files}

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_error: object) -> None:
        self._zip.close()

    @property
    def tables(self) -> list[str]:
        return list(self._entries)

    @contextlib.contextmanager
    def lines(self, table: str) -> Iterator[Lines]:
        name = self._entries.get(table, f"{self._root}{table}{_ROWS}")
        with self._opening(name) as (stream, size):
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
        folder = f"{self._root}{self.files}/"
        inside = [name for name in self._zip.namelist() if name.startswith(folder) and not name.endswith(_ROWS)]
        return {name.removeprefix(folder).partition(".")[0]: name for name in inside}

    @contextlib.contextmanager
    def _opening(self, name: str) -> Iterator[tuple[IO[bytes], int]]:
        with self._reading(name, KeyError, RuntimeError):  # it is not there, or encrypted
            stream, size = self._zip.open(name), self._zip.getinfo(name).file_size
        with self._reading(name), stream:
            yield stream, size

    def others(self) -> list[str]:
        """The parts that are not imported."""
        return sorted(self._others) if self.of_convex else []

    def numbers(self) -> dict[int, str]:
        """The names of Convex's tables, by the numbers in their ids."""
        name = f"{self._root}{_TABLES}"
        with self._reading(name, *_FORM):
            return {int(one["id"]): one["name"] for one in map(from_json, self._zip.read(name).splitlines())}

    def is_typed(self, table: str) -> bool:
        """Whether integers in the rows are told from floats by their spelling."""
        name = f"{self._root}{table}/generated_schema.jsonl"
        if name not in self._zip.namelist():
            return False
        if self._zip.read(name).strip() != b'"uniform"':
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
