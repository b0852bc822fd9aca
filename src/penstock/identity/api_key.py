"""An API key: the secret by which another program calls, and the identity that it has.

Only its hash is stored. A plain SHA-256 is enough: nobody finds a secret of 256 random bits by trying. Slow hashes are
for passwords, which people choose.
"""

from __future__ import annotations

from collections.abc import Sequence
from hashlib import sha256

from penstock.identity.identity import Identity

PREFIX = "penstock_key_"  # by which scanners for lost secrets know one
ISSUER = "penstock"


def hash_of(key: str) -> str:
    """The form in which a key is stored."""
    return sha256(key.encode()).hexdigest()


def identity_of_key(name: str, scopes: Sequence[str]) -> Identity:
    """The identity of a caller with a key."""
    return Identity(subject=name, issuer=ISSUER, name=name, claims={"scopes": list(scopes)})
