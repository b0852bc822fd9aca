"""Files: the facts of each, and which of them a browser may show.

Owns the rules about types and digests. Leaves the rows to `store.nouns.files`, and the bytes to `store.objects`.
"""

from __future__ import annotations

import base64
import binascii
import re
from collections.abc import Iterable, Iterator, Sequence
from datetime import datetime
from typing import Annotated, Any, ClassVar, Literal, get_args

from pydantic import BaseModel, ConfigDict, Field

from penstock.dataclass import dataclass
from penstock.errors import ValueInvalid
from penstock.schema.fields import Kind
from penstock.schema.ids import FILE_PREFIX, Id, target_of
from penstock.schema.table import TableDefinition

Form = Literal["id", "json", "encrypted"]
ANY_TYPE = "application/octet-stream"
DIGEST = "sha-256"  # as the header names it
FILE_FIELD = "file field"  # the noun of these fields among the declarations of programs

_FORMS: dict[str, Form] = {Kind.JSON.value: "json", Kind.ENCRYPTED.value: "encrypted"}
_LONGEST_TYPE = 255
_WORD = r"[!#$%&'*+.^_`|~0-9A-Za-z-]+"
_TYPE = re.compile(rf'{_WORD}/{_WORD}(?:[ \t]*;[ \t]*{_WORD}=(?:{_WORD}|"[\x20-\x21\x23-\x5b\x5d-\x7e]*"))*')
_SHA256_BYTES = 32
# Types that browsers show without running anything in them.
_HARMLESS = re.compile(
    r"(?:image/(?!svg\b)[\w.+-]+|audio/[\w.+-]+|video/[\w.+-]+|text/plain|application/pdf)", re.ASCII
)


class File(BaseModel):
    """A stored file, as `ctx.storage` knows it. `Id[File]` is the type of its id, for fields and arguments.

    Attributes:
        id: Its id.
        creation_time: When its bytes were complete.
        size: The number of its bytes.
        sha256: The digest of its bytes, in hexadecimal.
        content_type: Its type, as the uploader said; None if nobody said one.
        creator: The `Identity.token_identifier` of the caller that it is of; None if nobody had signed in.
        storage_id: The secret part of its permanent URL. Anybody with it can read the file.
    """

    __id_prefix__: ClassVar[str] = FILE_PREFIX
    __marks__: ClassVar = (("id",), True)  # it leaves as a row does, with `_id`, and `_creationTime` in milliseconds
    model_config = ConfigDict(frozen=True, populate_by_name=True)

    id: Annotated[Id[File], Field(alias="_id")]
    creation_time: Annotated[datetime, Field(alias="_creationTime")]
    size: int
    sha256: str
    content_type: Annotated[str | None, Field(alias="contentType")] = None
    creator: str | None = None
    storage_id: Annotated[str, Field(alias="storageId", repr=False)]


@dataclass(frozen=True, slots=True)
class FileField:
    """A column of a table whose values claim files: each is the id of one, JSON with ids in it, or ciphertext."""

    table: str
    column: str
    form: Form

    @property
    def name(self) -> str:
        """Its name, as programs declare it."""
        return f"{self.table}.{self.column}"

    @classmethod
    def read(cls, name: str, form: str) -> FileField:
        """A field by its name, with its form."""
        table, _, column = name.rpartition(".")
        return cls(table, column, _FORMS.get(form, "id"))


def check_content_type(given: object) -> str | None:
    """A type that a header may say; None for none.

    Raises:
        ValueInvalid: It is not one.
    """
    if given is None or given == "":
        return None
    if not isinstance(given, str) or len(given) > _LONGEST_TYPE or not _TYPE.fullmatch(given):
        raise ValueInvalid(f"{str(given)[:100]!r} is no content type.", fix="Write one such as image/png.")
    return given


def is_harmless(content_type: str) -> bool:
    """Whether browsers show a file of this type without running scripts in it."""
    return _HARMLESS.fullmatch(content_type.partition(";")[0].strip().lower()) is not None


def digest_of(header: str) -> bytes | None:
    """The SHA-256 that a header ``digest`` says; None if it says none.

    Raises:
        ValueInvalid: It is malformed.
    """
    for part in header.split(","):
        name, _, value = part.strip().partition("=")
        if name.lower() == DIGEST:
            return read_digest(value)
    return None


def read_digest(given: str) -> bytes:
    """A SHA-256, in base64 or in hexadecimal.

    Raises:
        ValueInvalid: It is neither.
    """
    try:
        found = bytes.fromhex(given) if len(given) == 2 * _SHA256_BYTES else base64.b64decode(given, validate=True)
    except (ValueError, binascii.Error):
        found = b""
    if len(found) != _SHA256_BYTES:
        raise ValueInvalid(f"{given[:100]!r} is no SHA-256.", fix="Send its 32 bytes in base64 or in hexadecimal.")
    return found


def digest_header(sha256: str) -> str:
    """The header ``digest`` of a whole file."""
    return f"{DIGEST}={base64.b64encode(bytes.fromhex(sha256)).decode()}"


def file_fields(definitions: Iterable[TableDefinition]) -> Iterator[FileField]:
    """The columns of tables whose annotations name `Id[File]`."""
    for definition in definitions:
        for column in definition.columns:
            field = definition.table.model_fields.get(column.name)
            if field is not None and _names_file((field.annotation, *field.metadata), set()):
                yield FileField(definition.name, column.name, _FORMS.get(column.kind.value, "id"))


def _names_file(annotations: Sequence[Any], seen: set[int]) -> bool:
    """Whether annotations name `Id[File]`, also inside of models and collections."""
    for one in annotations:
        if id(one) in seen:
            continue
        seen.add(id(one))
        if target_of(one) is File:
            return True
        inner = [*get_args(one)]
        if isinstance(one, type):
            fields = getattr(one, "model_fields", None) or getattr(one, "__dataclass_fields__", {})
            inner += [getattr(each, "annotation", None) or getattr(each, "type", None) for each in fields.values()]
        if inner and _names_file(inner, seen):
            return True
    return False
