-- Which of these migrations are applied. Written and read by migrations.
create table if not exists penstock_migration (
    name text primary key,
    applied_at text not null
) strict;

-- Jobs that may start now. Written by transactions that enqueue (insert only) and by workers; read by workers.
-- A job with an ending waits only for its on_complete to run. `attempts` is what became of those that failed, as JSON.
create table penstock_ready_job (
    seq integer primary key autoincrement,
    id blob not null unique,
    pool text not null,
    function text not null,
    kind text not null check (kind in ('query', 'mutation', 'action')),
    args text not null,
    priority integer not null,
    rank integer not null,
    run_at text not null,
    options text,
    on_complete text,
    ending text,
    attempt integer not null,
    enqueued_at text not null,
    error text,
    attempts text
) strict;
create index penstock_ready_job_order on penstock_ready_job (pool, rank, seq) where ending is null;
create index penstock_ready_job_ending on penstock_ready_job (seq) where ending is not null;

-- Jobs that may start later, or when the gate of their pool lets them: those that are `gated`. Of these, `waiting` ones
-- are due, and start in turns of their concurrency keys ('' for none). Written by transactions that enqueue (insert, or
-- change a job whose key they hold) and by workers; read by workers.
create table penstock_scheduled_job (
    id blob primary key,
    pool text not null,
    function text not null,
    kind text not null check (kind in ('query', 'mutation', 'action')),
    args text not null,
    priority integer not null,
    rank integer not null,
    gated integer not null default 0,
    waiting integer not null default 0,
    concurrency_key text not null default '',
    run_at text not null,
    options text,
    on_complete text,
    ending text,
    attempt integer not null,
    enqueued_at text not null,
    error text,
    attempts text
) strict;
create index penstock_scheduled_job_run_at on penstock_scheduled_job (run_at, id) where not waiting;
create index penstock_scheduled_job_gate on penstock_scheduled_job (pool, concurrency_key, rank, id) where waiting;

-- Jobs that run, each under the lease of its worker. Written and read by workers; a job that an outside system is to
-- complete is under lease 0, and whoever brings its token ends it. `progress` is what a running job says of itself.
create table penstock_running_job (
    id blob primary key,
    lease integer not null,
    pool text not null,
    function text not null,
    kind text not null,
    args text not null,
    priority integer not null,
    rank integer not null,
    gated integer not null default 0,
    concurrency_key text not null default '',
    run_at text not null,
    options text,
    on_complete text,
    ending text,
    attempt integer not null,
    enqueued_at text not null,
    started_at text not null,
    error text,
    attempts text,
    progress text
) strict;
create index penstock_running_job_key on penstock_running_job (pool, concurrency_key) where gated;

-- Jobs that have ended, until their status expires or they are retried. Written by workers, by the pruner and by whoever
-- retries (never in a transaction of a user's function); read by whoever asks.
create table penstock_finished_job (
    id blob primary key,
    pool text not null,
    function text not null,
    kind text not null,
    args text not null,
    priority integer not null,
    run_at text not null,
    options text,
    on_complete text,
    attempt integer not null,
    enqueued_at text not null,
    started_at text,
    finished_at text not null,
    expires_at text not null,
    state text not null check (state in ('success', 'failed', 'canceled')),
    result text,
    error text,
    traceback text,
    on_complete_error text,
    attempts text
) strict;
create index penstock_finished_job_expires_at on penstock_finished_job (expires_at);

-- Wishes that a job be canceled. Written by transactions that cancel (insert only); read and cleared by workers.
create table penstock_cancel_request (
    job_id blob not null,
    requested_at text not null
) strict;
create index penstock_cancel_request_job on penstock_cancel_request (job_id);

-- Leases of workers; the number fences every move of a job. Written and read by workers.
create table penstock_lease (
    id integer primary key autoincrement,
    worker text not null,
    started_at text not null,
    expires_at text not null
) strict;

-- Lease 0 never ends: under it are jobs that no worker runs, as an outside system will say how they end.
insert into penstock_lease (id, worker, started_at, expires_at)
values (0, 'outside', '2000-01-01T00:00:00.000000Z', '9999-12-31T00:00:00.000000Z');

-- Tokens with which outside systems complete jobs, as hashes; `told` is what came of one. Written by workers for
-- actions that ask for one, and by whoever brings one; read by these, and by workers for those whose time is over.
create table penstock_token (
    job_id blob not null,
    attempt integer not null,
    hash text not null,
    deadline text not null,
    kept_until text not null,
    told text check (told in ('success', 'failed', 'canceled', 'expired')),
    primary key (job_id, attempt)
) strict;
create index penstock_token_deadline on penstock_token (deadline) where told is null;
create index penstock_token_kept_until on penstock_token (kept_until);

-- Pools whose parallelism is limited. Written by backends that start and by whoever changes a limit; read by workers.
-- `declared` is what the program said last, `max_parallelism` what holds now; `epoch` rises with each change of it, or
-- of a pool of its group. `ageing` is in microseconds for a step of priority; the rates are JSON.
create table penstock_pool (
    name text primary key,
    declared integer not null,
    max_parallelism integer not null check (max_parallelism >= 0),
    paused integer not null default 0,
    epoch integer not null default 1,
    key_parallelism integer,
    rate_limit text,
    key_rate_limit text,
    pool_group text,
    ageing integer
) strict;

-- Slots of a pool that a worker holds under its lease: it runs no more of the pool's jobs at once. Their sum never
-- rises above max_parallelism. `wanted` is how many more it could use. Written and read by workers.
create table penstock_slot (
    pool text not null,
    lease integer not null,
    held integer not null check (held >= 0),
    wanted integer not null default 0,
    primary key (pool, lease)
) strict, without rowid;

-- Which concurrency key had the last turn in a pool. Its row is the lock of the pool's gate: one worker at a time lets jobs
-- through. Written and read by workers.
create table penstock_turn (
    pool text primary key,
    concurrency_key text not null default ''
) strict, without rowid;

-- Keys of jobs, of which there is one at a time: until it starts, or until it ends. Written by transactions that enqueue
-- (insert only); deleted by workers, and by a mutation that is a job, which ends its own.
create table penstock_job_key (
    pool text not null,
    key text not null,
    job_id blob not null,
    until_start integer not null,
    primary key (pool, key)
) strict, without rowid;
create index penstock_job_key_job on penstock_job_key (job_id);

-- What is left of rate limits. Those of pools are named after them, with a colon, and are written by workers; the others
-- are written by the functions that use them. Until `open_at` not one token can be taken; at `full_at` nothing is known
-- that is not so of a new one.
create table penstock_rate_limit (
    name text not null,
    key text not null,
    value integer not null,
    parts integer not null,
    moment text not null,
    open_at text not null,
    full_at text not null,
    primary key (name, key)
) strict, without rowid;
create index penstock_rate_limit_full_at on penstock_rate_limit (full_at);
create index penstock_rate_limit_open_at on penstock_rate_limit (name, open_at);

-- Crons: what is to be run when, and how far each has come. Written by backends that start (what their program declares),
-- by transactions that create, pause or remove one, and by schedulers; read by schedulers. All planned times up to
-- last_at are decided on; whoever holds the row decides on the next. job_id is its last run, of planned_at.
create table penstock_cron (
    name text primary key,
    schedule text not null,
    catch_up text not null check (catch_up in ('skip', 'one', 'all')),
    overlap text not null check (overlap in ('skip', 'wait')),
    jitter real not null,
    function text not null,
    job text not null,
    takes_planned_at integer not null,
    declared integer not null,
    paused integer not null default 0,
    last_at text not null,
    next_at text not null,
    job_id blob,
    planned_at text
) strict;
create index penstock_cron_next_at on penstock_cron (next_at, name) where not paused;
