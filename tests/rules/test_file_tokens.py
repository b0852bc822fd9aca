"""Tokens, types and digests of files, as others send them."""

from __future__ import annotations

import base64
import hashlib
from dataclasses import replace
from datetime import UTC, datetime, timedelta

import pytest

from penstock import TokenExpired, TokenInvalid, ValueInvalid
from penstock.files.file import check_content_type, digest_header, digest_of, is_harmless
from penstock.files.tokens import FileToken, read_token, sign

NOW = datetime(2030, 1, 1, tzinfo=UTC)
SECRET = "a secret of this database, that nobody else knows, and long enough for all"
TOKEN = FileToken("upload", NOW + timedelta(hours=1), max_bytes=5, once="one", creator="test|ada")


def test_a_token_comes_back_until_its_time_is_over() -> None:
    for token in (TOKEN, FileToken("read", NOW + timedelta(seconds=1), file="file_x")):
        text = sign(token, SECRET)
        assert read_token(text, token.purpose, SECRET, NOW) == token
        with pytest.raises(TokenExpired):
            read_token(text, token.purpose, SECRET, token.expires_at)


def test_what_was_not_signed_here_is_refused() -> None:
    text = sign(TOKEN, SECRET)
    body, seal = text.split(".")
    more = sign(replace(TOKEN, max_bytes=10**9), SECRET).split(".")[0]
    wrong = ["", ".", "..", "a.b", text[:-1], text[1:], f"{body}.", f".{seal}", f"{body}.{seal}x", f"{more}.{seal}"]
    wrong += [
        f"{body}=.{seal}",
        f"{body[:-1]}.{seal}",
        sign(TOKEN, SECRET[1:]),
        sign(TOKEN, ""),
        "x" * 100_000,
        "\0ä\ud800",
    ]
    wrong += [sign(replace(TOKEN, purpose="read"), SECRET)]
    for given in wrong:
        with pytest.raises(TokenInvalid):
            read_token(given, "upload", SECRET, NOW)


def test_types_that_run_scripts_are_told() -> None:
    harmless = [
        "image/png",
        "IMAGE/JPEG",
        "image/vnd.x-y+z",
        "audio/mpeg",
        "video/mp4",
        "text/plain; charset=utf-8",
        "application/pdf",
    ]
    others = [
        "image/svg+xml",
        "image/SVG+xml;a=b",
        "image/svg",
        "text/html",
        "text/xml",
        "application/xhtml+xml",
        "text/javascript",
    ]
    others += [
        "application/octet-stream",
        "application/pdfx",
        "text/plainx",
        "ximage/png",
        "image/",
        "multipart/x-mixed-replace",
    ]
    assert [one for one in harmless if not is_harmless(one)] == []
    assert [one for one in others if is_harmless(one)] == []


def test_types_are_those_of_headers() -> None:
    right = ["a/b", "text/plain;charset=utf-8", 'text/plain; a="b c"; d=e', "application/vnd.a+json"]
    assert [check_content_type(one) for one in right] == right
    assert check_content_type(None) is check_content_type("") is None
    for wrong in ("a", "a/", "/b", "a/b\r\nc: d", "a/b;", "a/b; c", 'a/b; c="d', "a/b\n", "ä/b", "x/" + "y" * 254, 5):
        with pytest.raises(ValueInvalid, match="content type"):
            check_content_type(wrong)


def test_a_digest_is_read_in_both_spellings() -> None:
    found = hashlib.sha256(b"hello")
    spelled = base64.b64encode(found.digest()).decode()
    assert digest_header(found.hexdigest()) == f"sha-256={spelled}"
    for said in (f"sha-256={spelled}", f"SHA-256={spelled}", f"md5=abc, sha-256={found.hexdigest()}"):
        assert digest_of(said) == found.digest()
    assert digest_of("") is digest_of("md5=abc") is None
    for wrong in ("sha-256", "sha-256=", "sha-256=abc", f"sha-256={spelled[:-2]}", "sha-256=" + "z" * 64, "sha-256=ä"):
        with pytest.raises(ValueInvalid, match="SHA-256"):
            digest_of(wrong)
