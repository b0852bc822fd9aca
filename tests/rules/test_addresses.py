"""Addresses of callers: each way to write one address counts as that address, and a subscriber's network as one."""

from __future__ import annotations

from ipaddress import IPv4Address, IPv6Address, ip_address

import pytest
from hypothesis import given
from hypothesis import strategies as st

from penstock.calls.run.ratelimits import key_of
from penstock.identity.caller import Caller, RequestInfo

V4, V6 = st.ip_addresses(v=4), st.ip_addresses(v=6, network="2600::/12")


def key(address: object) -> str:
    return key_of(Caller(request=RequestInfo(str(address))))


def spellings(one: IPv4Address) -> list[str]:
    """How dual-stack sockets, translators, tunnels and proxies name a caller of version 4."""
    number, inverse = int(one), int(one) ^ 0xFFFFFFFF
    within = [
        (0xFFFF << 32) | number,  # mapped
        (0xFFFF << 48) | number,  # translated
        (0x64FF9B << 96) | number,  # NAT64
        (0x2002 << 112) | (number << 80) | 7,  # 6to4
        (0x20010000 << 96) | (0xC0000201 << 64) | inverse,  # Teredo
    ]
    found = [str(IPv6Address(one)) for one in within]
    texts = [*found, found[0].upper(), f"::ffff:{one}", IPv6Address(within[0]).exploded]
    return [*texts, *(f"[{text}]" for text in texts), f"{one}:4711", f"[{found[0]}]:4711", f" {one} "]


@given(one=V4, other=V4)
def test_every_spelling_of_an_address_of_version_4_is_that_address(one: IPv4Address, other: IPv4Address) -> None:
    assert {key(text) for text in spellings(one)} == {f"address {one}"}
    assert one == other or not {key(text) for text in spellings(one)} & {key(text) for text in spellings(other)}


@given(one=V6, bits=st.integers(0, 2**64 - 1), flip=st.integers(64, 127))
def test_a_network_of_version_6_is_one_caller_and_the_next_is_another(one: IPv6Address, bits: int, flip: int) -> None:
    beside = IPv6Address((int(one) >> 64 << 64) | bits)
    assert key(beside) == key(one) == key(f"[{one}]:80") == key(f"{one}%eth0") == key(one.exploded.upper())
    assert key(IPv6Address(int(one) ^ (1 << flip))) != key(one)


@pytest.mark.parametrize("text", ["", "testclient", "unix:", "1.2.3", "::1::", "%", "[", "[]:1", "1.2.3.4:x"])
def test_what_is_no_address_counts_as_it_is(text: str) -> None:
    with pytest.raises(ValueError, match="not appear"):
        ip_address(text)
    assert text in key(text)
