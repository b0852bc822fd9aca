"""The caller that a function runs for: the system, a user, or somebody unknown."""

from __future__ import annotations

import re
from dataclasses import dataclass, field
from hashlib import blake2b
from ipaddress import IPv4Address, IPv6Address, ip_address, ip_network

from penstock.errors import Unauthenticated
from penstock.identity.identity import Identity

_UNMASKED = 4  # characters, of a subject that has twice as many

_WITH_PORT = re.compile(r"\[(.+)\](?::\d+)?|([\d.]+):\d+")  # as some proxies forward addresses
_OF_VERSION_4 = (ip_network("64:ff9b::/96"), ip_network("::ffff:0:0:0/96"))  # NAT64, and as hosts translate them


@dataclass(frozen=True, slots=True)
class RequestInfo:
    """The request that a call from outside came with: ``ctx.request``. Of a web socket, the request that opened it.

    Attributes:
        address: The address in the network that it came from, or empty; behind a proxy, the one that the proxy names.
        user_agent: The program that sent it, as it says of itself: up to 500 characters, or empty.
        request_id: Its id, as in log events and in the header ``x-request-id`` of the answer.
    """

    address: str = ""
    user_agent: str = ""
    request_id: str = ""


@dataclass(frozen=True, slots=True)
class Caller:
    """The caller that a function runs for."""

    identity: Identity | None = None  # the user; None for the system, and for a caller from outside without a token
    # whether it is the program itself: its jobs, crons, commands and Python. No guard applies to it
    is_system: bool = False
    request: RequestInfo | None = None  # the request that the call came with; None for a call from Python, and for jobs
    # the reason why what it sent as ``authorization`` names nobody, if its function is to judge that
    refusal: Unauthenticated | None = field(default=None, compare=False, repr=False)

    @property
    def address(self) -> str:
        """The address in the network that the call came from, or empty."""
        return "" if self.request is None else self.request.address

    @property
    def key(self) -> str:
        """A text that is equal for callers who get the same answers."""
        if self.identity is not None:
            return self.identity.key
        return "system" if self.is_system else "anonymous"

    @property
    def mark(self) -> str | None:
        """A digest that tells its user from others, and says nothing else; None for the system."""
        if self.identity is not None:
            return blake2b(self.identity.token_identifier.encode(), digest_size=16).hexdigest()
        return None if self.is_system else "anonymous"

    @property
    def request_key(self) -> str:
        """A text that is equal for callers who get the same answers to queries that read the request."""
        return self.key if self.request is None else f"{self.key} {self.request}"

    @property
    def short_name(self) -> str:
        """Its name for administrators: a token identifier with only the end of its subject, which may be a name."""
        if self.identity is None:
            return self.key
        subject = self.identity.subject
        return f"{self.identity.issuer}|…{subject[max(len(subject) - _UNMASKED, (len(subject) + 1) // 2) :]}"


SYSTEM = Caller(is_system=True)
ANONYMOUS = Caller()


def address_of(text: str) -> IPv4Address | IPv6Address | None:
    """An address, however it is written: of version 4 also if dual-stack sockets, translators or tunnels wrap it.

    None if it is no address.
    """
    found = _WITH_PORT.fullmatch(text := text.strip())
    try:
        one = ip_address((found[1] or found[2] if found else text).partition("%")[0])
    except ValueError:
        return None
    if one.version == 4:  # noqa: PLR2004 - the version
        return one
    inner = one.ipv4_mapped or one.sixtofour or (one.teredo or (None, None))[1]
    return inner or (IPv4Address(int(one) % 2**32) if any(one in network for network in _OF_VERSION_4) else one)
