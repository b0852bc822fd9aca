"""The codec that encrypts with Fernet: AES-128 in CBC mode, with an HMAC. Leaves the stored form to `codec`."""

from __future__ import annotations

from base64 import urlsafe_b64decode, urlsafe_b64encode
from contextlib import suppress

from cryptography.fernet import Fernet, MultiFernet

from penstock.errors import ConfigError


class FernetCodec:
    """A `Codec` with the recipe Fernet of the package cryptography.

    Args:
        key: The key that encrypts: 32 bytes in URL-safe base64, as ``Fernet.generate_key()`` makes it.
        *older: Keys that decrypt what was stored before, until nothing is left that needs them.

    Raises:
        ConfigError: A key cannot be.
    """

    __slots__ = ("_fernet",)

    def __init__(self, key: bytes | str, *older: bytes | str) -> None:
        with suppress(ValueError, TypeError):  # whose texts may hold a key
            self._fernet = MultiFernet(list(map(Fernet, (key, *older))))
            return
        raise ConfigError(
            "A key of FernetCodec is none: it has to be 32 bytes in URL-safe base64.",
            fix="Make one with cryptography.fernet.Fernet.generate_key(), and keep it outside of the database.",
        )

    def encode(self, data: bytes, /) -> bytes:
        """Encrypt data with the first key."""
        return urlsafe_b64decode(self._fernet.encrypt(data))

    def decode(self, data: bytes, /) -> bytes:
        """Decrypt data with the key that fits; `cryptography.fernet.InvalidToken` if none does."""
        return self._fernet.decrypt(urlsafe_b64encode(data))
