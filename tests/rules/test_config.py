"""Settings: where they are looked for, in which order, and what cannot be one."""

from __future__ import annotations

import os
import re
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import fields
from pathlib import Path
from typing import Any

import pytest

from penstock import App
from penstock.config import Config, find_settings, load_config, stray_variables
from penstock.errors import ConfigError


@contextmanager
def place(folder: Path, environment: dict[str, str]) -> Iterator[None]:
    """Be in a folder, with these settings in the environment and no other ones."""
    with pytest.MonkeyPatch.context() as patch:
        patch.chdir(folder)
        for name in [one for one in os.environ if one.startswith("PENSTOCK_") or one == "DATABASE_URL"]:
            patch.delenv(name)
        for name, value in environment.items():
            patch.setenv(name, value)
        yield


def load(tmp_path: Path, environment: dict[str, str] | None = None, **arguments: Any) -> Config:
    with place(tmp_path, environment or {}):
        return load_config(arguments)


def test_what_is_nearer_counts_more(tmp_path: Path) -> None:
    (tmp_path / "pyproject.toml").write_text("[tool.penstock]\nthreads = 1\nprocesses = 1\nlease = 1\npoll = 1\n")
    (tmp_path / "penstock.toml").write_text('app = "a:b"\nprocesses = 2\nlease = 2\npoll = 2\n[check]\n[codegen]\n')
    found = load(tmp_path, {"PENSTOCK_LEASE": "3", "PENSTOCK_POLL": "3"}, poll=4)
    assert (found.threads, found.processes, found.lease, found.poll) == (1, 2, 3.0, 4.0)


def test_a_database_url_is_found_as_others_name_it(tmp_path: Path) -> None:
    assert load(tmp_path, {"DATABASE_URL": "postgresql://a"}).database == "postgresql://a"
    both = {"DATABASE_URL": "postgresql://a", "PENSTOCK_DATABASE": "postgresql://b"}
    assert load(tmp_path, both).database == "postgresql://b"
    assert load(tmp_path, both, database="sqlite:///c.db").database == "sqlite:///c.db"
    for variables, named in ((both, "PENSTOCK_DATABASE"), ({"DATABASE_URL": "x"}, "DATABASE_URL")):
        with place(tmp_path, variables):
            assert find_settings()["database"] == (variables[named], named)


def test_a_database_that_is_set_and_empty_is_refused(tmp_path: Path) -> None:
    for variable in ("DATABASE_URL", "PENSTOCK_DATABASE"):
        with pytest.raises(ConfigError, match=rf"^The database is set by {variable}, but empty\."):
            load(tmp_path, {variable: ""})
        assert load(tmp_path, {variable: ""}, database="sqlite:///c.db").database == "sqlite:///c.db"
        with pytest.raises(ConfigError, match=r"^The database is set by an argument, but empty\."):
            load(tmp_path, {variable: "sqlite:///b.db"}, database="")
    (tmp_path / "penstock.toml").write_text('database = ""\n')
    with pytest.raises(ConfigError, match=r"^The database is set by .*penstock\.toml, but empty\."):
        load(tmp_path)


def test_what_sets_nothing_does_not_count(tmp_path: Path) -> None:
    (tmp_path / "pyproject.toml").write_text("[tool.other]\nx = 1\n")
    others = {"PENSTOCK_UNKNOWN": "x", "THREADS": "5", "penstock_threads": "5", "PENSTOCK_THREADS": ""}
    assert load(tmp_path) == load(tmp_path, others, threads=None) == Config()
    given = {"PENSTOCK_LEESE": "5", "PENSTOCK_MAX_CONECTIONS": "5", "PENSTOCK_THREAD": "", "PENSTOCK_LEASE": "5"}
    known = {"PENSTOCK_APP": "x", "PENSTOCK_LOG_LEVEL": "info", "PENSTOCK_LOG_FORMAT": "json"}
    of_tests = {"PENSTOCK_TEST_NODE": "x", "PENSTOCK_WRITE_DOCS": "1"}
    assert stray_variables(given | known | of_tests) == {
        "PENSTOCK_LEESE": "PENSTOCK_LEASE",
        "PENSTOCK_MAX_CONECTIONS": "PENSTOCK_MAX_CONNECTIONS",
    }
    assert stray_variables(others) == {"PENSTOCK_UNKNOWN": ""}


def test_an_app_warns_of_variables_that_set_nothing(
    caplog: pytest.LogCaptureFixture, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("PENSTOCK_LEESE", "secret")
    monkeypatch.setenv("PENSTOCK_UNKNOWN", "secret")
    App().config()
    assert [record.getMessage() for record in caplog.records] == [
        "config.unknown_variable variable=PENSTOCK_LEESE meant=PENSTOCK_LEASE",
        "config.unknown_variable variable=PENSTOCK_UNKNOWN meant=nothing known",
    ]
    assert {record.levelname for record in caplog.records} == {"WARNING"}


def test_what_an_app_fixes_is_checked_where_it_is_declared() -> None:
    with pytest.raises(
        ConfigError, match=r"^App\(…\): no_such_setting is no setting\. See the settings with penstock config"
    ):
        App(no_such_setting=1)
    with pytest.raises(ConfigError, match=r"^App\(…\): leese is no setting\. Did you mean lease\?$"):
        App(leese=None)
    with pytest.raises(ConfigError, match=r"^App\(…\): lease must be a number of seconds greater than 0, not -1\.$"):
        App(lease=-1)
    assert App(lease=None, threads="5").config().threads == 5


@pytest.mark.parametrize(
    ("name", "value", "words"),
    [
        ("lease", "abc", "a number of seconds greater than 0, not 'abc'."),
        ("grace", "-1", "a number of seconds, 0 or greater, not -1.0."),
        ("threads", "0", "a whole number greater than 0, not 0."),
        ("dev", "yes", "true or false, not 'yes'."),
        ("synchronous", "off", "full or normal, not 'off'."),
        ("statement_timeout", "0", "between 0.001 and 2,147,483 seconds, which PostgreSQL can count in milliseconds"),
    ],
)
def test_a_value_that_cannot_be_is_told_in_words_with_its_place(
    tmp_path: Path, name: str, value: str, words: str
) -> None:
    variable = f"PENSTOCK_{name.upper()}"
    with pytest.raises(ConfigError, match=f"^{variable} must be {re.escape(words)}"):
        load(tmp_path, {variable: value})
    with place(tmp_path, {}), pytest.raises(ConfigError, match=f"^{name} must be {re.escape(words)}"):
        load_config({name: value})
    file = tmp_path / "penstock.toml"
    file.write_text(f"{name} = '{value}'\n")
    with pytest.raises(ConfigError, match=f"^{re.escape(str(file))}: {name} must be {re.escape(words)}"):
        load(tmp_path)


def test_every_setting_can_be_set_in_the_environment(tmp_path: Path) -> None:
    samples = {str: "x", int: "7", float: "7.5", bool: "true"}
    for setting in fields(Config):
        chosen = {
            "practices": "log, PEN006=off",
            "synchronous": "normal",
            "admin_token": "x" * 12,
            "public_url": "https://a.example",
        }
        text = chosen.get(setting.name, samples[type(setting.default)])
        found = getattr(load(tmp_path, {f"PENSTOCK_{setting.name.upper()}": text}), setting.name)
        assert found != setting.default
        assert type(found) is type(setting.default)


@pytest.mark.parametrize(
    ("name", "values"),
    [
        ("threads", ["many", "1.5", "", "0x10", "0", "-1", 0, -1, 1.5, True, [], "nan", "inf", float("inf")]),
        ("lease", ["long", "0", "-1", "nan", "inf", 0, -0.5, float("nan"), float("inf"), True, "1e999"]),
        ("grace", [-1, float("nan"), "x"]),
        ("statement_timeout", [0.0001, 2_147_484, "1e9", 25 * 86400.0]),
        ("dev", ["yes", "2", 2, 1.0, "on"]),
        ("synchronous", ["off", "FULL", 1, True]),
        ("practices", ["on", "PEN003", "log PEN003=off", "log, PEN3=off", True]),
        ("database", [5, True, ["x"]]),
    ],
)
def test_what_cannot_be_a_setting_is_refused_by_name(tmp_path: Path, name: str, values: list[Any]) -> None:
    for value in values:
        if value == "":
            continue
        with pytest.raises(ConfigError, match=name):
            load(tmp_path, **{name: value})


def test_a_setting_that_does_not_exist_is_told_with_those_that_do(tmp_path: Path) -> None:
    with pytest.raises(ConfigError, match=r"^thread is no setting\. Did you mean threads\?$"):
        load(tmp_path, thread=5)
    (tmp_path / "penstock.toml").write_text("thread = 5\n")
    with pytest.raises(ConfigError, match=r"penstock\.toml: thread is no setting"):
        load(tmp_path)
    (tmp_path / "penstock.toml").write_text("[tool.penstock]\nthreads = 5\n")
    with pytest.raises(ConfigError, match=r"Write penstock\.toml without \[tool\.penstock\]"):
        load(tmp_path)


def test_a_file_that_cannot_be_read_is_named(tmp_path: Path) -> None:
    for name in ("penstock.toml", "pyproject.toml"):
        for content in (b"threads = ", b"\xff\xfe", b"[[[", b"threads = 1\nthreads = 2\n"):
            (tmp_path / name).write_bytes(content)
            with pytest.raises(ConfigError, match=f"{name} cannot be read"):
                load(tmp_path)
        (tmp_path / name).unlink()
    for shape in ("tool = 5\n", "[tool]\npenstock = 5\n"):
        (tmp_path / "pyproject.toml").write_text(shape)
        with pytest.raises(ConfigError, match=r"pyproject\.toml"):
            load(tmp_path)
