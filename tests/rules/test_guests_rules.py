"""How a statement gets to a driver with parameters of another style; and that asking for a guest loads no driver."""

from __future__ import annotations

import json
import subprocess
import sys

import pytest

from penstock.store.guest.parameters import name_parameters, nameless_sql

_PROBE = """
import json, sys
from penstock.errors import ContextError
from penstock.store.guest.session import guest_session
try:
    guest_session(object())
except ContextError:
    print(json.dumps(sorted(sys.modules)))
"""


@pytest.mark.parametrize(
    ("sql", "named"),
    [
        ("select $1, $2, $1", "select (%(p1)s), (%(p2)s), (%(p1)s)"),
        ("select $1::uuid[], a[$12]", "select (%(p1)s)::uuid[], a[(%(p12)s)]"),
        ("select a ? 'b', '?'", "select a ? 'b', '?'"),
        ("select 5 % 2, '%'", "select 5 %% 2, '%%'"),
        ("select '$1', 'it''s $1', $1", "select '$1', 'it''s $1', (%(p1)s)"),
        (r"select E'\'$1', e'\\', $1", r"select E'\'$1', e'\\', (%(p1)s)"),
        (r"select '\', $1, '\'", r"select '\', (%(p1)s), '\'"),
        (r"select name'\', $1", r"select name'\', (%(p1)s)"),
        ('select "a$1""$2", $1', 'select "a$1""$2", (%(p1)s)'),
        ("select $$it's $1$$, $a$ $$ $1 $a$, $1", "select $$it's $1$$, $a$ $$ $1 $a$, (%(p1)s)"),
        ("select 1 -- it's $1\n, $1 /* it's $1 */ , $2", "select 1 -- it's $1\n, (%(p1)s) /* it's $1 */ , (%(p2)s)"),
        ("select a$1 from b", "select a$1 from b"),
    ],
)
def test_parameters_are_renamed_where_they_are_parameters(sql: str, named: str) -> None:
    assert name_parameters(sql) == named


@pytest.mark.parametrize(
    ("sql", "nameless"),
    [
        ("select ?, ?", "select (%s), (%s)"),
        ("select x from y where z in (?,?) limit ?", "select x from y where z in ((%s),(%s)) limit (%s)"),
        ("select 5 %?, '%', '%s'", "select 5 %%(%s), '%%', '%%s'"),
        ("select '?', 'it''s ?', ?", "select '?', 'it''s ?', (%s)"),
        (r"select '\', ?, '\'", r"select '\', (%s), '\'"),
        ('select "a?""?", ?', 'select "a?""?", (%s)'),
        ("select 1 -- it's ?\n, ? /* it's ? */ , ?", "select 1 -- it's ?\n, (%s) /* it's ? */ , (%s)"),
        ("select $1 from b", "select $1 from b"),
    ],
)
def test_question_marks_are_rewritten_where_they_are_parameters(sql: str, nameless: str) -> None:
    assert nameless_sql(sql) == nameless


def test_recognising_a_connection_loads_no_driver() -> None:
    done = subprocess.run([sys.executable, "-c", _PROBE], capture_output=True, text=True, check=True, timeout=60)
    loaded = {name.partition(".")[0] for name in json.loads(done.stdout)}
    assert not loaded & {"psycopg", "psycopg2", "asyncpg", "sqlalchemy", "django", "sqlite3", "aiosqlite", "greenlet"}
