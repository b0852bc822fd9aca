-- The tables that both databases have, in PostgreSQL's words, of which `store.sql.ddl` respells a few for SQLite. A line that
-- ends with the name of one of them is for that one only. What only one has is in its own file of the same name, run after this.

create schema if not exists penstock;  -- PostgreSQL

-- Which of these migrations are applied. Written and read by migrations.
create table if not exists penstock.migration (
    name text primary key,
    applied_at timestamptz not null default now()  -- PostgreSQL
    applied_at text not null  -- SQLite
);

-- Jobs that may start now. Written by transactions that enqueue (insert only) and by workers; read by workers.
-- Small whatever else is stored: claiming reads nothing but the heads of its two indexes. A job with an ending waits only
-- for its on_complete to run. `attempts` is what became of those that failed, as JSON.
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

-- Jobs that may start later, or when the gate of their pool lets them: those that are `gated`. Of these, `waiting` ones
-- are due, and start in turns of their concurrency keys ('' for none); of one key by `rank`, `place` and id. While one that
-- `keeps_turn` waits for its next attempt, no other of its key starts. Written by transactions that enqueue (insert, or
-- change a job whose key they hold), by planners and by workers; read by workers.
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
    keeps_turn boolean not null default false,
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
create index scheduled_job_turn on penstock.scheduled_job (pool, concurrency_key) where keeps_turn and not waiting;
create index scheduled_job_next on penstock.scheduled_job (pool, concurrency_key, rank, place, id, run_at)
    where gated and not waiting and concurrency_key <> '';

-- Jobs that run, each under the lease of its worker. Written and read by workers; a job that an outside system is to
-- complete is under lease 0, and whoever brings its token ends it. `progress` is what a running job says of itself.
-- `marked` is whether its handler has said that it is done, with which it ends as success whatever comes after; handlers
-- of reactive tasks write that, also in transactions of the user's own.
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

-- Jobs that have ended, until their status expires or they are retried. Written by workers, by the pruner and by whoever
-- retries (never in a transaction of a user's function); read by whoever asks.
-- On PostgreSQL there is one partition for each day of expiry, used in a ring of 16 and truncated as a whole; -1 takes all that
-- stays longer.
create table penstock.finished_job (
    slot smallint not null,  -- PostgreSQL
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
    primary key (id, slot)  -- PostgreSQL
    attempts text  -- SQLite
) partition by list (slot);  -- PostgreSQL
);  -- SQLite

-- Wishes that a job be canceled. Written by transactions that cancel (insert only); read and cleared by workers.
create table penstock.cancel_request (
    job_id uuid not null,
    requested_at timestamptz not null
);
create index cancel_request_job on penstock.cancel_request (job_id);

-- Leases of workers, planners and relays, and of whoever rebuilds an outbox; the number fences what is done under it.
-- Written and read by these, and by whoever takes one away that has run out.
create table penstock.lease (
    id bigint generated always as identity primary key,
    worker text not null,
    started_at timestamptz not null,
    expires_at timestamptz not null
);

-- Lease 0 never ends: under it are jobs that no worker runs, as an outside system will say how they end.
insert into penstock.lease (id, worker, started_at, expires_at)  -- SQLite
insert into penstock.lease (id, worker, started_at, expires_at) overriding system value  -- PostgreSQL
values (0, 'outside', '2000-01-01T00:00:00.000000Z', '9999-12-31T00:00:00.000000Z');

-- Locks that are held, or have run out. `fence` is the number of a holder: it rises with each one, and none is given twice.
-- On PostgreSQL it is a key of the table, so that whoever makes sure of it in a transaction keeps others from taking the lock over until
-- that ends, and does not keep its holder from renewing it. `attempt` is who asked, should the answer be lost; `wanted` is
-- whether somebody waits. Written by whoever takes, renews, waits for or gives back a lock, and by the pruner; read by these.
create table penstock.lock (
    fence bigint generated always as identity primary key,
    key text collate "C" not null unique,
    attempt uuid not null,
    holder text not null,
    taken_at timestamptz not null,
    expires_at timestamptz not null,
    wanted boolean not null default false
);

-- Tokens with which outside systems complete jobs, as hashes; `told` is what came of one. Written by workers for
-- actions that ask for one, and by whoever brings one; read by these, and by workers for those whose time is over.
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
);
create index session_request_kept on penstock.session_request (kept_until);

-- Pools whose parallelism is limited. Written by backends that start and by whoever changes a limit; read by workers.
-- `declared` is what the program said last, `max_parallelism` what holds now; `epoch` rises with each change of it, or
-- of a pool of its group. `ageing` is in microseconds for a step of priority; the rates are JSON.
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

-- Slots of a pool that a worker holds under its lease: it runs no more of the pool's jobs at once. Their sum never
-- rises above max_parallelism. `wanted` is how many more it could use. Written and read by workers.
create table penstock.slot (
    pool text not null,
    lease bigint not null,
    held integer not null check (held >= 0),
    wanted integer not null default 0,
    primary key (pool, lease)
);  -- PostgreSQL
) strict, without rowid;  -- SQLite

-- The gates of pools: which concurrency key had the last turn. The row is the gate's lock: one worker at a time lets jobs
-- through. Written by backends that start and by workers; read by workers.
create table penstock.gate (
    pool text primary key,
    concurrency_key text not null default ''
);  -- PostgreSQL
) strict, without rowid;  -- SQLite

-- Keys of jobs, of which there is one at a time: until it starts, or until it ends. Written by transactions that enqueue
-- (insert only); deleted by workers, by a mutation that is a job, which ends its own, and by whoever finds that the job
-- of a key was never stored.
create table penstock.job_key (
    pool text not null,
    key text not null,
    job_id uuid not null,
    until_start boolean not null,
    primary key (pool, key)
);  -- PostgreSQL
) strict, without rowid;  -- SQLite
create index job_key_job on penstock.job_key (job_id);

-- What is left of rate limits. Those of pools are named after them, with a colon, and are written by workers; the others
-- are written by the functions that use them. Until `open_at` not one token can be taken; at `full_at` nothing is known
-- that is not so of a new one.
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

-- Crons: what is to be run when, and how far each has come. Written by backends that start (what their program declares),
-- by transactions that create, pause or remove one, and by schedulers; read by schedulers. All planned times up to
-- last_at are decided on; whoever holds the row decides on the next. job_id is its last run, of planned_at.
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

-- The functions of the programs that run on this database, and what kind they are. Written by backends that start; read
-- by penstock.enqueue. A name stays when no program has it any more: its jobs are parked, and shown.
create table penstock.function (
    name text primary key,
    kind text not null check (kind in ('query', 'mutation', 'action'))
);

-- Reactive tasks of the programs that run on this database. Written by backends that start (what their program declares),
-- and by whoever pauses, throttles or reconciles one; read by planners and workers. `spec` is what was declared, as JSON;
-- `options` what its jobs are asked for, as jobs have it. Until `held_until` none of its jobs starts. `failures` are the
-- times of its last failed attempts, which workers write and read for its circuit breaker. `begun` counts how often
-- looking at all rows was begun anew, so that who still goes on with an earlier look does not end the later one.
-- `earlier` are the interests that it has had when it was declared; the feed may still have what they told.
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

-- The rows that a task has to do with, each with the last change that it wants to hear of. `generation` rises with each
-- of these; a job for the row is `live` until it has ended for the last generation, and `idle` tells the planner whether
-- there was none. The job is in one of the tables above, with the id of the record. From
-- `forget_at` on the record is forgotten. `version` is the last version of the handler that has run for the row, `for_version`
-- the one that runs for it again though the row has not changed; -1 stands for none. Written by planners, and by workers and
-- mutations that end such jobs, and by whoever looks after tasks (never in a transaction of a user's function); read by
-- these.
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

-- The records of tasks with how their jobs stand. `state` is null if a job is lost. What is said of a job that a handler or
-- a hold has put off is no error. Read by whoever looks after tasks.
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
left join penstock.finished_job f on f.id = r.id and f.slot = -1;  -- PostgreSQL
left join penstock.finished_job f on f.id = r.id;  -- SQLite

-- What readers want to hear of which tables. Written by backends that start; read by these. Interests in one table share its
-- triggers: `capture` is the number in their names, and `installed` is how they and the table were when they were made.
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

-- How far readers have come, and under which lease each is read. Written by services that read the feed and by whoever
-- adds, places or drops one; read by these, and by the pruner. `fence` rises with each lease that takes the reader.
create table penstock.change_reader (
    name text primary key,
    position text not null,
    lease bigint,
    fence bigint not null default 0,
    registered_at timestamptz not null,
    moved_at timestamptz not null
);

-- Topics of messages that are sent, and not captured. Written by backends that start; read by whoever sends. The messages
-- are in the change feed, under the number with a minus before it.
create table penstock.topic (
    id integer generated always as identity primary key,
    name text not null unique
);

-- Outboxes: what is declared of them, and how their delivery stands. Written by backends that start, by the relay that
-- reads one, and by whoever pauses, moves or retries it; read by all of these. `epoch` rises with each change that is not
-- the relay's own: it writes nothing about an outbox that is not as it knows it.
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

-- Messages that are not next any more and not delivered either: they wait behind another one of their key, or for rows that
-- are older, or have failed. Written and read by relays, and by whoever retries or skips one. What was turned is an insert,
-- and a mere change in the feed.
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
    turned boolean not null default false,
    primary key (outbox, seq)
);  -- PostgreSQL
) strict, without rowid;  -- SQLite
create index outbox_message_state on penstock.outbox_message (outbox, state, seq);
-- Keys have any length, and entries of PostgreSQL's indexes have not. Spelled otherwise, this state leads who asks for keys to
-- no other index, and nobody else to this one.
create index outbox_message_key on penstock.outbox_message (outbox, left(key, 500)) where state || '' = 'halted';  -- PostgreSQL
create index outbox_message_key on penstock.outbox_message (outbox, key) where state = 'halted';  -- SQLite
create index outbox_message_row on penstock.outbox_message (outbox, left(row_key, 500));  -- PostgreSQL
create index outbox_message_row on penstock.outbox_message (outbox, row_key);  -- SQLite
create index outbox_message_due on penstock.outbox_message (outbox, retry_at, seq) where state = 'halted';
create index outbox_message_turned on penstock.outbox_message (outbox, seq) where turned;
