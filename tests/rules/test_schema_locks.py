"""The locks of statements: each rule with a statement that breaks it, and with one that keeps it."""

from __future__ import annotations

from penstock.store.push.locks import hazards, lock_of

UNSAFE = {
    "create index i on t (a)": "create index concurrently i on t (a)",
    "drop index i": "drop index concurrently i",
    "alter table t add constraint f foreign key (a) references u": "alter table t add constraint f foreign key (a) "
    "references u not valid",
    "alter table t add column a bigint references u": "alter table t add column a bigint",
    "alter table t add constraint k unique (a)": "alter table t add constraint k unique using index i",
    "alter table t add column a uuid default gen_random_uuid()": "alter table t add column a timestamptz default now()",
    "alter table t add column a bigserial": "alter table t add column a bigint",
    "alter table t add column a text not null": "alter table t add column a text not null default ''",
    "alter table t add constraint c check (a > 0)": "alter table t add constraint c check (a > 0) not valid",
    "alter table t alter column a type bigint": "alter table t alter column a set default 1",
    "alter table t alter a set not null": "alter table t alter a drop not null",
    "alter table t drop column a": "alter table t drop constraint c",
    "alter table t rename column a to b": "alter table t validate constraint c",
    "ALTER TABLE t RENAME a TO b": "alter index i rename to j",
    "drop table t": "create table t (a text)",
    "truncate t": "select 1",
    "update t set a = 1": "update t set a = 1 where id = 1",
    "vacuum full t": "vacuum t",
}


def test_each_rule_refuses_one_statement_and_lets_another_pass() -> None:
    for bad, good in UNSAFE.items():
        assert [sql for sql, _ in hazards([good, bad], "expand")] == [bad], bad


def test_old_processes_do_not_count_in_contract_and_a_validated_check_proves_not_null() -> None:
    assert not [*hazards(["alter table t drop column a", "alter table t rename a to b", "drop table t"], "contract")]
    proof = ["alter table t validate constraint c", "alter table t alter column a set not null"]
    assert not [*hazards(proof, "expand")]


def test_the_lock_is_the_strongest() -> None:
    assert lock_of("create unique index concurrently i on t (a)") == "SHARE UPDATE EXCLUSIVE"
    assert lock_of("create index i on t (a)") == "SHARE"
    assert lock_of("alter table t add column a text") == "ACCESS EXCLUSIVE"
    assert lock_of("create trigger g before insert on t execute function f()") == "SHARE ROW EXCLUSIVE"
    assert lock_of("create table t (a text)") == ""
