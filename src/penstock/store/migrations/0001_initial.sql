-- The tables that both databases have, in PostgreSQL's words, of which `store.sql.ddl` respells a few for SQLite. A line that
-- ends with the name of one of them is for that one only. What only one has is in its own file of the same name, run after this.

create schema if not exists penstock;  -- PostgreSQL

-- A row is a migration that was applied. Schema push writes and reads it; it stays.
create table if not exists penstock.migration (
    name text primary key,
    applied_at timestamptz not null default now()  -- PostgreSQL
    applied_at text not null  -- SQLite
);

-- A row is a job that may start now. Transactions that enqueue insert it; workers move it to running_job. The table stays
-- small, and a claim reads only the heads of its two indexes. A job with an `ending` waits only for its on_complete to
-- run. `attempts` are the failed ones, as JSON.
create table penstock.ready_job (
    seq bigint generated always as identity,  -- PostgreSQL
    seq integer primary key,  -- SQLite
    id uuid primary key,  -- PostgreSQL
    id uuid not null unique,  -- SQLite
    pool text not null,
    function text not null,
    kind text not null check (kind in ('query', 'mutation', 'action')),
    args text not null,
    priority smallint not null,
    rank bigint not null,
    run_at timestamptz not null,
    options text,
    on_complete text,
    ending text,
    attempt integer not null,
    enqueued_at timestamptz not null,
    error text,
    attempts text
) with (autovacuum_vacuum_scale_factor = 0.02, autovacuum_vacuum_cost_delay = 0, fillfactor = 80);
create index ready_job_order on penstock.ready_job (pool, rank, seq) where ending is null;
create index ready_job_ending on penstock.ready_job (seq) where ending is not null;

-- A row is a job that may start later, at `run_at`, or when the gate of its pool lets it through: a `gated` one. `waiting`
-- ones are due, and start in turns of their concurrency keys ('' for none); of one key by `rank`, `place` and id. One that
-- `blocks_key` waits for its next attempt, and no other of its key starts before. Transactions that enqueue insert it, or
-- replace the job of their key; planners and workers change it, and workers move it on.
create table penstock.scheduled_job (
    id uuid primary key,
    pool text not null,
    function text not null,
    kind text not null check (kind in ('query', 'mutation', 'action')),
    args text not null,
    priority smallint not null,
    rank bigint not null,
    gated boolean not null default false,
    waiting boolean not null default false,
    concurrency_key text collate "C" not null default '',
    place bigint not null default 0,
    blocks_key boolean not null default false,
    run_at timestamptz not null,
    options text,
    on_complete text,
    ending text,
    attempt integer not null,
    enqueued_at timestamptz not null,
    error text,
    attempts text
);
create index scheduled_job_run_at on penstock.scheduled_job (run_at, id) where not waiting;
create index scheduled_job_gate on penstock.scheduled_job (pool, concurrency_key, rank, place, id) where waiting;
create index scheduled_job_blocking on penstock.scheduled_job (pool, concurrency_key) where blocks_key and not waiting;
create index scheduled_job_next on penstock.scheduled_job (pool, concurrency_key, rank, place, id, run_at)
    where gated and not waiting and concurrency_key <> '';

-- A row is a job that runs, under the lease of its worker. Workers write it, and move it on when the job ends. A job that an
-- outside system is to complete is under lease 0, and the caller with its token ends it. `progress` is the job's own
-- report. `marked`: its handler has called `mark_completed`, so it ends as success whatever the handler raises later.
-- Handlers of reactive tasks write that, also in transactions of the user's own.
create table penstock.running_job (
    id uuid primary key,
    lease bigint not null,
    pool text not null,
    function text not null,
    kind text not null,
    args text not null,
    priority smallint not null,
    rank bigint not null,
    gated boolean not null default false,
    concurrency_key text collate "C" not null default '',
    run_at timestamptz not null,
    options text,
    on_complete text,
    ending text,
    attempt integer not null,
    enqueued_at timestamptz not null,
    started_at timestamptz not null,
    error text,
    attempts text,
    progress text,
    marked boolean not null default false
) with (autovacuum_vacuum_scale_factor = 0.02, autovacuum_vacuum_cost_delay = 0, fillfactor = 80);
create index running_job_key on penstock.running_job (pool, concurrency_key) where gated;

-- A row is a job that has ended. Workers insert it; the pruner deletes it when its status expires, and an administrator who
-- retries moves it back (never in a transaction of a user's function). On PostgreSQL `day` names the partition: the day of
-- expiry in a ring of 16, each truncated as a whole; -1 takes rows that stay longer.
create table penstock.finished_job (
    day smallint not null,  -- PostgreSQL
    id uuid not null,  -- PostgreSQL
    id uuid primary key,  -- SQLite
    pool text not null,
    function text not null,
    kind text not null,
    args text not null,
    priority smallint not null,
    run_at timestamptz not null,
    options text,
    on_complete text,
    attempt integer not null,
    enqueued_at timestamptz not null,
    started_at timestamptz,
    finished_at timestamptz not null,
    expires_at timestamptz not null,
    state text not null check (state in ('success', 'failed', 'canceled', 'skipped')),
    result text,
    error text,
    traceback text,
    on_complete_error text,
    on_complete_attempts text,
    attempts text,  -- PostgreSQL
    primary key (id, day)  -- PostgreSQL
    attempts text  -- SQLite
) partition by list (day);  -- PostgreSQL
);  -- SQLite

-- A row is a request that a job be canceled. Transactions that cancel insert it; workers read it, and delete it when the job
-- has ended.
create table penstock.cancel_request (
    job_id uuid not null,
    requested_at timestamptz not null
);
create index cancel_request_job on penstock.cancel_request (job_id);

-- A row is the lease of a worker, a planner, a relay, or a process that rebuilds an outbox. Its id fences each move under it.
-- Its holder inserts and renews it; it is deleted by its holder, or once it has expired by the process that takes over.
create table penstock.lease (
    id bigint generated always as identity primary key,
    holder text not null,
    started_at timestamptz not null,
    expires_at timestamptz not null
);

-- Lease 0 never ends: under it are jobs that no worker runs, as an outside system will complete them.
insert into penstock.lease (id, holder, started_at, expires_at)  -- SQLite
insert into penstock.lease (id, holder, started_at, expires_at) overriding system value  -- PostgreSQL
values (0, 'outside', '2000-01-01T00:00:00.000000Z', '9999-12-31T00:00:00.000000Z');

-- A row is a lock that is held, or has expired. Holders insert, renew and delete it, waiters set `wanted`, and the pruner
-- deletes expired ones. `fence` is the fencing number of its holder: it rises with each one. On PostgreSQL it is the
-- primary key, so that a transaction that checks it keeps others from taking the lock over, and its holder can still
-- renew it. `attempt` identifies the request, if its answer is lost.
create table penstock.lock (
    fence bigint generated always as identity primary key,
    key text collate "C" not null unique,
    attempt uuid not null,
    holder text not null,
    taken_at timestamptz not null,
    expires_at timestamptz not null,
    wanted boolean not null default false
);

-- A row is a token with which an outside system completes a job, as a hash. Workers insert it for actions that ask for one;
-- the caller that redeems it, or a worker after `deadline`, writes the outcome to `told`. It goes at `kept_until`.
create table penstock.token (
    job_id uuid not null,
    attempt integer not null,
    hash text not null,
    deadline timestamptz not null,
    kept_until timestamptz not null,
    told text check (told in ('success', 'failed', 'canceled', 'expired')),
    primary key (job_id, attempt)
);
create index token_deadline on penstock.token (deadline) where told is null;
create index token_kept_until on penstock.token (kept_until);

-- Mutations that clients sent over a web socket, each with its result, so that one that is sent again takes effect once.
-- `call` is a hash of the function and its arguments. A row of request -1 reserves a session's number. Written with what the
-- mutation writes, read when a client has come back, deleted by the pruner.
create table penstock.session_request (
    session text collate "C" not null,
    request bigint not null,
    call bigint not null,
    result text not null,
    kept_until timestamptz not null,
    primary key (session, request, call)
);  -- PostgreSQL
) without rowid;  -- SQLite
create index session_request_kept on penstock.session_request (kept_until);

-- A row is a pool with a limit. Backends that start insert it, and administrators change its limit; workers read it. It
-- stays. `declared` is the program's last limit, `max_parallelism` the one that holds now; `epoch` rises with each change of it,
-- or of a pool of its group. `ageing` is in microseconds for a step of priority; the rates are JSON.
create table penstock.pool (
    name text primary key,
    declared integer not null,
    max_parallelism integer not null check (max_parallelism >= 0),
    paused boolean not null default false,
    epoch bigint not null default 1,
    key_parallelism integer,
    rate_limit text,
    key_rate_limit text,
    pool_group text,
    ageing bigint
);

-- A row counts the slots of a pool that a worker holds under its lease: it runs no more of the pool's jobs at once. Workers
-- write it, and it goes with the lease. All `held` of a pool never add up to more than its max_parallelism. `wanted` is how
-- many more the worker could use.
create table penstock.slot (
    pool text not null,
    lease bigint not null,
    held integer not null check (held >= 0),
    wanted integer not null default 0,
    primary key (pool, lease)
);  -- PostgreSQL
) strict, without rowid;  -- SQLite

-- A row is the gate of a pool, and its lock: one worker at a time lets jobs through. Backends that start insert it; workers
-- write the concurrency key that had the last turn. It stays.
create table penstock.gate (
    pool text primary key,
    concurrency_key text not null default ''
);  -- PostgreSQL
) strict, without rowid;  -- SQLite

-- A row is a key of which there is one job at a time, until that starts, or until it ends. Transactions that enqueue insert
-- it. It is deleted by workers, by a mutation that is a job, which ends its own, and by a caller that finds that the job of a
-- key was never stored.
create table penstock.job_key (
    pool text not null,
    key text not null,
    job_id uuid not null,
    until_start boolean not null,
    primary key (pool, key)
);  -- PostgreSQL
) strict, without rowid;  -- SQLite
create index job_key_job on penstock.job_key (job_id);

-- A row is the token count of a rate limit for one key. Workers write those of pools, which have a colon and the name of the
-- pool; functions write those they take tokens of. No token can be taken before `open_at`. From `full_at` on it is as
-- good as a new one, and the pruner deletes it.
create table penstock.rate_limit (
    name text not null,
    key text not null,
    value bigint not null,
    parts bigint not null,
    moment timestamptz not null,
    open_at timestamptz not null,
    full_at timestamptz not null,
    primary key (name, key)
);  -- PostgreSQL
) strict, without rowid;  -- SQLite
create index rate_limit_full_at on penstock.rate_limit (full_at);
create index rate_limit_open_at on penstock.rate_limit (name, open_at);

-- A row is a cron: its schedule, its job, and its last decided time. Backends that start insert those that their programs
-- declare, mutations create, pause or remove others, and schedulers move them on. All planned times up to `last_at` are
-- decided; the scheduler that locks the row decides on the next. `job_id` is its last run, of `planned_at`.
create table penstock.cron (
    name text primary key,
    schedule text not null,
    catch_up text not null check (catch_up in ('skip', 'one', 'all')),
    overlap text not null check (overlap in ('skip', 'wait')),
    jitter double precision not null,
    function text not null,
    job text not null,
    takes_planned_at boolean not null,
    declared boolean not null,
    paused boolean not null default false,
    last_at timestamptz not null,
    next_at timestamptz not null,
    job_id uuid,
    planned_at timestamptz
);
create index cron_next_at on penstock.cron (next_at, name) where not paused;

-- A row is a function of a program that runs on this database, with its kind. Backends that start insert it;
-- penstock.enqueue reads it. It stays when no program has the function any more: the function's jobs are parked, and shown.
create table penstock.function (
    name text primary key,
    kind text not null check (kind in ('query', 'mutation', 'action'))
);

-- A row is a reactive task. Backends that start insert and update it, and administrators pause, hold or reconcile it; planners
-- and workers read it. It stays. `spec` is the declaration, as JSON; `options` are those of its jobs, as jobs have them. No
-- job of it starts before `held_until`. `failures` are the times of its last failed attempts, which workers write for its
-- circuit breaker. `begun` counts the scans of all rows, so that the end of an earlier scan does not end a later one.
-- `earlier` are its interests of earlier declarations; the feed may still have their changes.
create table penstock.task (
    id integer generated always as identity primary key,
    name text not null unique,
    function text not null,
    kind text not null check (kind in ('mutation', 'action')),
    pool text not null,
    priority smallint not null,
    options text not null,
    resets boolean not null,
    history integer not null,
    version integer not null,
    signature text not null,
    spec text not null,
    declared_at timestamptz not null,
    paused boolean not null default false,
    held_until timestamptz,
    failures timestamptz[],  -- PostgreSQL
    failures text,  -- SQLite
    reconciling text,
    reconciled_at timestamptz,
    begun integer not null default 0,
    earlier integer[] not null default '{}'  -- PostgreSQL
    earlier text not null default '[]'  -- SQLite
);

-- A row is the record of a task for one row of its table, with the last relevant change. Planners insert it; planners, workers
-- and mutations that end its jobs update it; administrators of tasks do so outside of mutations; planners delete it
-- after `forget_at`. `generation` is the number of the change. A job for it is `live` until it has ended for that generation, and
-- `idle` tells the planner that there was none. The job has the id of the record. `version` is the last version of the
-- handler that has run for the row; `for_version` is the one that is to run although the row has not changed; -1 is none.
create table penstock.task_record (
    task integer not null,
    key text collate "C" not null,
    id uuid not null,
    generation bigint not null,
    live boolean not null,
    idle boolean not null,
    change text not null,
    before text,
    after text,
    concurrency_key text,
    place bigint not null default 0,
    changed_at timestamptz not null,
    due_at timestamptz not null,
    latest_at timestamptz,
    gone text check (gone in ('left', 'deleted')),
    forget_at timestamptz,
    version integer not null default -1,
    for_version integer not null default -1,
    primary key (task, key)
-- Each run updates its record once, on the same page then.  -- PostgreSQL
) with (fillfactor = 50);  -- PostgreSQL
) strict, without rowid;  -- SQLite
create index task_record_forget_at on penstock.task_record (forget_at) where forget_at is not null;

-- The records of tasks with the states of their jobs, for administrators of tasks. `state` is null if a job is lost. The
-- reason of a job that a handler or a hold has put off is no error.
create view penstock.task_state as
select r.task, r.key, r.id, r.generation, r.live, r.change, r.changed_at, r.due_at, r.gone,
       case when y.id is not null or s.id is not null then 'pending' when u.id is not null then 'running' else f.state end as state,
       coalesce(y.attempt, s.attempt, u.attempt, f.attempt) as attempt,
       coalesce(y.run_at, s.run_at, u.run_at, f.run_at) as run_at,
       coalesce(u.started_at, f.started_at) as started_at, f.finished_at,
       coalesce(y.error, s.error, u.error, f.error) as error,
       coalesce(y.error, s.error, u.error, f.error) is not null
           and coalesce(y.error, s.error, u.error, f.error) not like 'The task is held%'
           and coalesce(y.error, s.error, u.error, f.error) not like 'Deferred by its handler%' as has_error
from penstock.task_record r
left join penstock.ready_job y on y.id = r.id
left join penstock.scheduled_job s on s.id = r.id
left join penstock.running_job u on u.id = r.id
left join penstock.finished_job f on f.id = r.id and f.day = -1;  -- PostgreSQL
left join penstock.finished_job f on f.id = r.id;  -- SQLite

-- A row is an interest: the changes of one table that one reader wants. Backends that start insert it, and delete it when it
-- is no longer declared. Interests in one table share its triggers: `capture` is the number in their names, and `installed`
-- is how they and the table were when they were made.
create table penstock.interest (
    id integer generated always as identity primary key,  -- PostgreSQL
    id integer primary key autoincrement,  -- SQLite
    name text not null,
    digest text not null,
    source text not null,
    spec text not null,
    capture integer,
    installed text,
    declared_at timestamptz not null,
    unique (name, digest)
);

-- A row is a reader of the feed, with its position and its lease. Backends that start insert it; the services that read move
-- it, administrators move or drop it, and the pruner reads it. `fence` rises with each lease that takes the reader.
create table penstock.change_reader (
    name text primary key,
    position text not null,
    lease bigint,
    fence bigint not null default 0,
    registered_at timestamptz not null,
    moved_at timestamptz not null
);

-- A row is a topic of messages that programs send. Backends that start insert it; callers that send read it. It stays. The
-- change feed has its messages under its number with a minus before it.
create table penstock.topic (
    id integer generated always as identity primary key,
    name text not null unique
);

-- A row is an outbox: its declaration and its cursor. Backends that start insert and update it, the relay that reads it moves
-- its cursor, and administrators pause, move, retry or delete it. `epoch` rises with each change that is not the relay's
-- own: the relay writes only to an outbox whose epoch it knows.
create table penstock.outbox (
    id integer generated always as identity primary key,
    name text not null unique,
    function text not null,
    kind text not null,
    source text not null,
    spec text not null,
    version integer not null,
    keep_for interval not null,  -- PostgreSQL
    keep_for double precision not null,  -- SQLite
    interests integer[] not null default '{}',  -- PostgreSQL
    interests text not null default '[]',  -- SQLite
    meanings text not null default '{}',
    declared_at timestamptz not null,
    epoch bigint not null default 0,
    ready boolean not null default false,
    paused boolean not null default false,
    backfill text,
    skips bigint[] not null default '{}',  -- PostgreSQL
    skips text not null default '[]',  -- SQLite
    passed text not null default '[]',
    trouble text,
    delivered bigint not null default 0,
    delivered_at timestamptz,
    rate double precision not null default 0
);

-- A row is a message that is set aside: it has failed, or waits for another one of its key, or for older rows. Relays insert
-- it, and delete it when it is delivered; administrators retry or skip it. One `as_insert` is delivered as an insert, and is
-- a mere change in the feed.
create table penstock.outbox_message (
    outbox integer not null references penstock.outbox (id) on delete cascade,
    seq bigint not null,
    key text not null,
    state text not null constraint aside_state check (state = 'waiting' or state = 'halted' or state = 'parked'),
    interest integer not null,
    kind text not null,
    row_key text,
    before text,
    after text,
    changed_at timestamptz not null,
    attempts integer not null default 0,
    failed_at timestamptz,
    retry_at timestamptz,
    error text,
    traceback text,
    deaths integer not null default 0,
    used_up boolean not null default false,
    as_insert boolean not null default false,
    primary key (outbox, seq)
);  -- PostgreSQL
) strict, without rowid;  -- SQLite
create index outbox_message_state on penstock.outbox_message (outbox, state, seq);
-- Keys have any length, and entries of PostgreSQL's indexes have not. Spelled otherwise, this state leads a query for keys to
-- no other index, and no other query to this one.
create index outbox_message_key on penstock.outbox_message (outbox, left(key, 500)) where state || '' = 'halted';  -- PostgreSQL
create index outbox_message_key on penstock.outbox_message (outbox, key) where state = 'halted';  -- SQLite
create index outbox_message_row on penstock.outbox_message (outbox, left(row_key, 500));  -- PostgreSQL
create index outbox_message_row on penstock.outbox_message (outbox, row_key);  -- SQLite
create index outbox_message_due on penstock.outbox_message (outbox, retry_at, seq) where state = 'halted';
create index outbox_message_as_insert on penstock.outbox_message (outbox, seq) where as_insert;
