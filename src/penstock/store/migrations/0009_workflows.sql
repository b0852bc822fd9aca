-- Runs of workflows. A run is a job; these tables hold what its body has learned, and what waits for it.

-- A row is a record of a run: a call that has ended or begun, or another thing that its body has learned. `place` is its place
-- in the order in which it did. The run's worker inserts and updates it under its lease, with a step's effects if that is a
-- mutation. The pruner deletes it after the run.
create table penstock.workflow_record (
    run uuid not null,
    number bigint not null,
    kind text not null,
    place bigint,
    at timestamptz not null,
    function text not null,
    digest text not null,
    args text,
    outcome text,
    attempts integer not null,
    due_at timestamptz,
    job uuid,
    primary key (run, number)
);  -- PostgreSQL
) strict, without rowid;  -- SQLite
create index workflow_record_begun on penstock.workflow_record (run) where number = 0;

-- A row is an event for a run: one that a function has sent, the end of a job that it waits for, or a request to cancel it.
-- Transactions of users insert events, workers the rest; the run's worker marks it as received. The pruner deletes it after the
-- run. With a `key` it is there once.
create table penstock.workflow_event (
    id bigint generated always as identity primary key,
    run uuid not null,
    kind text not null check (kind in ('event', 'job', 'cancel')),
    name text not null,
    key text,
    payload text not null,
    sent_at timestamptz not null,
    received boolean not null default false
);
create index workflow_event_run on penstock.workflow_event (run, id) where not received;
create unique index workflow_event_key  -- PostgreSQL
create unique index penstock_workflow_event_key  -- SQLite
    on penstock.workflow_event (run, name, key) where key is not null;

-- A row says that there may be something new for a run. It is inserted with each event; workers delete it, and let the run go
-- on if it sleeps.
create table penstock.workflow_wake (
    run uuid not null
);
create index workflow_wake_run on penstock.workflow_wake (run);

-- A row says which code does not fit the history of a run: the fingerprints of the programs that refused it. Workers insert
-- and update it, and let the run go on once they have other code. The pruner deletes it after the run.
create table penstock.workflow_refusal (
    run uuid primary key,
    function text not null,
    refused text not null
);
