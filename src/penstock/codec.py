"""Encryption at rest: what a codec is, the mark of encrypted columns, and the form of stored ciphertext.

Owns that form. Leaves ciphers to codecs, and the choice of what is encrypted to its callers.
"""

from __future__ import annotations

from base64 import urlsafe_b64decode, urlsafe_b64encode
from contextlib import suppress
from typing import Annotated, Any, Protocol, TypeVar, runtime_checkable

from pydantic import GetCoreSchemaHandler
from pydantic_core import CoreSchema, from_json, to_json

from penstock.errors import Undecryptable

T = TypeVar("T")

IS_ENCRYPTED = "penstock.is_encrypted"  # in the metadata of a schema
ENCRYPTED = "$encrypted"  # the name of ciphertext in JSON
_HEAD = f' {{"{ENCRYPTED}":"'  # JSON that penstock writes never begins with a space, so no value looks like it


@runtime_checkable
class Codec(Protocol):
    """Encrypts and decrypts what an app stores: ``App(codec=…)``. `FernetCodec` is one."""

    def encode(self, data: bytes, /) -> bytes:
        """Encrypt data."""

    def decode(self, data: bytes, /) -> bytes:
        """Decrypt what `encode` gave; raise any error for all else."""


class _Mark:
    def __repr__(self) -> str:
        return "Encrypted"

    def __get_pydantic_core_schema__(self, source: Any, handler: GetCoreSchemaHandler) -> CoreSchema:
        schema: Any = handler(source)
        return {**schema, "metadata": {**schema.get("metadata", {}), IS_ENCRYPTED: True}}


MARK = _Mark()
Encrypted = Annotated[T, MARK]
"""The type of a table's field that is encrypted with the app's codec: ``phone: Encrypted[str]``."""


class Ciphertext(dict[str, str]):
    """An encrypted value that was not decrypted, as JSON shows it."""


class Encryption:
    """Encrypts with the codec of an app. Without one it reads only what is not encrypted."""

    def __init__(self, codec: Codec | None = None) -> None:
        self._codec = codec

    def encrypt(self, text: str) -> str:
        """JSON text as it is stored; as it is, if there is no codec or nothing to hide."""
        return text if self._codec is None or text == "{}" else f'{_HEAD}{self.encrypt_value(text)}"}}'

    def decrypt(self, text: str) -> str:
        """JSON text from its stored form, with members added to the ciphertext; `Undecryptable` if no key fits."""
        if not is_encrypted(text):
            return text
        added = from_json(text)
        plain = self.decrypt_value(added.pop(ENCRYPTED))
        return to_json({**from_json(plain), **added}).decode() if added else plain

    def reveal(self, text: str) -> str:
        """Decrypt a text; it stays ciphertext if that fails."""
        with suppress(Undecryptable):
            return self.decrypt(text)
        return text

    def encrypt_value(self, text: str) -> str:
        """Text as the ciphertext of an encrypted column."""
        return urlsafe_b64encode(self._codec_or_error.encode(text.encode())).decode()

    def decrypt_value(self, token: str) -> str:
        """Text from its ciphertext; raises what `decrypt` raises."""
        codec = self._codec_or_error
        try:
            return codec.decode(urlsafe_b64decode(token)).decode()
        except Exception as error:
            raise Undecryptable(
                "A stored value cannot be decrypted: no key of the codec fits, or it was never encrypted.",
                fix="Add the key that it was written with to the codec, behind the first one.",
            ) from error

    @property
    def _codec_or_error(self) -> Codec:
        if self._codec is None:
            raise Undecryptable("A value is encrypted, but this app has no codec.", fix=CODEC_FIX)
        return self._codec


CODEC_FIX = "Write App(codec=FernetCodec(key)), with the key of the other programs on this database."


def is_encrypted(text: str) -> bool:
    """Whether stored JSON text is ciphertext."""
    return text.startswith(_HEAD)
