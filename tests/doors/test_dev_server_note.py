"""The note of a server in development: who may read it, and what is not trusted."""

from __future__ import annotations

import json
import tempfile
from pathlib import Path

import pytest

from penstock.cli.devserver import DevServer, _path, find_server, note_server

SERVER = DevServer("http://127.0.0.1:8000", "t0ken")


@pytest.fixture(autouse=True)
def folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.setattr(tempfile, "tempdir", str(tmp_path))
    monkeypatch.chdir(tmp_path)
    return tmp_path


def test_a_note_is_of_one_folder_and_of_its_user_alone(folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    assert find_server() is None
    for token in ("old", "t0ken"):
        note_server(SERVER._replace(token=token))
    assert find_server() == SERVER
    assert _path().stat().st_mode & 0o777 == 0o600
    (folder / "other").mkdir()
    monkeypatch.chdir(folder / "other")
    assert find_server() is None


def test_what_somebody_else_has_left_there_is_not_trusted(folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    target = folder / "theirs"
    target.write_text(json.dumps(SERVER._asdict()))
    _path().symlink_to(target)
    assert find_server() is None, "nobody follows a link"
    note_server(SERVER._replace(token="new"))
    assert "t0ken" in target.read_text(), "nor writes through it"
    monkeypatch.setattr("os.getuid", lambda: 12345)
    assert find_server() is None, "a file of another user"
    for text in ("", "[]", '{"url": 1}'):
        _path().write_text(text)
        assert find_server() is None
