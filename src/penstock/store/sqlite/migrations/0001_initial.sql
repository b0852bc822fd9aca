-- Applied migrations. Written and read by migrations.
create table if not exists penstock_migration (
    name text primary key,
    applied_at text not null
) strict;

-- Jobs that may start now. Written by transactions that enqueue (insert only) and by workers; read by workers.
-- A job with an ending waits only for its on_complete to run. `attempts` are the failed ones, as JSON.
create table penstock_ready_job (
    seq integer primary key,
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

-- Jobs that may start later, or when the gate of their pool lets them: the `gated` ones. Of these, `waiting` ones
-- are due, and start in turns of their concurrency keys ('' for none); of one key by `rank`, `place` and id. While one that
-- `keeps_turn` waits for its next attempt, no other of its key starts. Written by transactions that enqueue (insert, or
-- change a job whose key they hold), by planners and by workers; read by workers.
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
    place integer not null default 0,
    keeps_turn integer not null default 0,
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
create index penstock_scheduled_job_gate on penstock_scheduled_job (pool, concurrency_key, rank, place, id) where waiting;
create index penstock_scheduled_job_turn on penstock_scheduled_job (pool, concurrency_key) where keeps_turn and not waiting;
create index penstock_scheduled_job_next on penstock_scheduled_job (pool, concurrency_key, rank, place, id, run_at)
    where gated and not waiting and concurrency_key <> '';

-- Jobs that run, each under the lease of its worker. Written and read by workers; a job that an outside system is to
-- complete is under lease 0, and a caller with its token ends it. `progress` is the job's own report.
-- `marked` says that its handler has completed it, so that it ends as success even if the handler raises; handlers
-- of reactive tasks write it, also in transactions of the user's own.
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
    progress text,
    marked integer not null default 0
) strict;
create index penstock_running_job_key on penstock_running_job (pool, concurrency_key) where gated;

-- Jobs that have ended, until their status expires or they are retried. Written by workers, by the pruner and by
-- administrators who retry (never in a transaction of a user's function); read by all.
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
    state text not null check (state in ('success', 'failed', 'canceled', 'skipped')),
    result text,
    error text,
    traceback text,
    on_complete_error text,
    on_complete_attempts text,
    attempts text
) strict;
create index penstock_finished_job_expires_at on penstock_finished_job (expires_at);
-- Of the jobs of tasks those that have failed, to be counted.
create index penstock_finished_job_failed on penstock_finished_job (options ->> 'task') where state = 'failed' and options ->> 'task' is not null;

-- Wishes that a job be canceled. Written by transactions that cancel (insert only); read and cleared by workers.
create table penstock_cancel_request (
    job_id blob not null,
    requested_at text not null
) strict;
create index penstock_cancel_request_job on penstock_cancel_request (job_id);

-- Leases of workers, planners, relays, and processes that rebuild an outbox; the number fences each move under it.
-- Written and read by these, and by the process that takes over an expired one.
create table penstock_lease (
    id integer primary key autoincrement,
    worker text not null,
    started_at text not null,
    expires_at text not null
) strict;

-- Lease 0 never ends: under it are jobs that no worker runs, as an outside system will complete them.
insert into penstock_lease (id, worker, started_at, expires_at)
values (0, 'outside', '2000-01-01T00:00:00.000000Z', '9999-12-31T00:00:00.000000Z');

-- Locks that are held, or have run out. `fence` is the number of a holder: it rises with each one, and none is given twice.
-- `attempt` identifies the request, if the answer is lost; `wanted` is whether somebody waits. Written by holders and
-- waiters of a lock, and by the pruner; read by these.
create table penstock_lock (
    fence integer primary key autoincrement,
    key text not null unique,
    attempt blob not null,
    holder text not null,
    taken_at text not null,
    expires_at text not null,
    wanted integer not null default 0
) strict;

-- Tokens with which outside systems complete jobs, as hashes; `told` is the outcome of one. Written by workers for
-- actions that ask for one, and by the callers that redeem one; read by these, and by workers for expired ones.
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

-- Pools whose parallelism is limited. Written by backends that start and by changes of a limit; read by workers.
-- `declared` is the program's last limit, `max_parallelism` the one that holds now; `epoch` rises with each change of it, or
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

-- The concurrency key with the last turn in a pool. Its row is the lock of the pool's gate: one worker at a time lets jobs
-- through. Written and read by workers.
create table penstock_turn (
    pool text primary key,
    concurrency_key text not null default ''
) strict, without rowid;

-- Keys of jobs, of which there is one at a time: until it starts, or until it ends. Written by transactions that enqueue
-- (insert only); deleted by workers, by a mutation that is a job, which ends its own, and by a caller that finds that the
-- job of a key was never stored.
create table penstock_job_key (
    pool text not null,
    key text not null,
    job_id blob not null,
    until_start integer not null,
    primary key (pool, key)
) strict, without rowid;
create index penstock_job_key_job on penstock_job_key (job_id);

-- Token counts of rate limits. Those of pools are named after them, with a colon, and are written by workers; the others
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

-- Crons: their schedules, jobs and last decided times. Written by backends that start (their program's declarations),
-- by transactions that create, pause or remove one, and by schedulers; read by schedulers. All planned times up to
-- last_at are decided on; the scheduler that locks the row decides on the next. job_id is its last run, of planned_at.
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

-- The functions of the programs that run on this database, with their kinds. Written by backends that start; read
-- by penstock_enqueue. A name stays when no program has it any more: its jobs are parked, and shown.
create table penstock_function (
    name text primary key,
    kind text not null check (kind in ('query', 'mutation', 'action'))
) strict;

-- Reactive tasks of the programs that run on this database. Written by backends that start (their program's declarations),
-- and to pause, throttle or reconcile one; read by planners and workers. `spec` is the declaration, as JSON;
-- `options` are those of its jobs, as jobs have them. Until `held_until` none of its jobs starts. `failures` are the
-- times of its last failed attempts, which workers write and read for its circuit breaker. `begun` counts how often
-- the scan of all rows was begun anew, so that the end of an earlier scan does not end the later one.
-- `earlier` are the interests that it has had when it was declared, as JSON; the feed may still have their changes.
create table penstock_task (
    id integer primary key,
    name text not null unique,
    function text not null,
    kind text not null check (kind in ('mutation', 'action')),
    pool text not null,
    priority integer not null,
    options text not null,
    resets integer not null,
    history integer not null,
    version integer not null,
    signature text not null,
    spec text not null,
    declared_at text not null,
    paused integer not null default 0,
    held_until text,
    failures text,
    reconciling text,
    reconciled_at text,
    begun integer not null default 0,
    earlier text not null default '[]'
) strict;

-- The rows that a task has to do with, each with the last change that it wants to hear of. `generation` rises with each
-- of these; a job for the row is `live` until it has ended for the last generation, and `idle` tells the planner whether
-- there was none. The job is in one of the tables above, with the id of the record. From
-- `forget_at` on the record is forgotten. `version` is the last version of the handler that has run for the row,
-- `for_version` the one that runs for it again though the row has not changed; -1 stands for none. Written by planners, and
-- by workers and mutations that end such jobs, and by administrators of tasks (never in a transaction of a user's function);
-- read by these.
create table penstock_task_record (
    task integer not null,
    key text not null,
    id blob not null,
    generation integer not null,
    live integer not null,
    idle integer not null,
    change text not null,
    before text,
    after text,
    concurrency_key text,
    place integer not null default 0,
    changed_at text not null,
    due_at text not null,
    latest_at text,
    gone text check (gone in ('left', 'deleted')),
    forget_at text,
    version integer not null default -1,
    for_version integer not null default -1,
    primary key (task, key)
) strict, without rowid;
create index penstock_task_record_forget_at on penstock_task_record (forget_at) where forget_at is not null;

-- The job that is to be for the last generation of each record: its arguments, its rank as jobs/order.py says, the key of
-- the gate that it passes if it passes one, and the attempts of the last ones as its history. Read by planners, and by
-- workers that end such jobs.
create view penstock_task_job as
select r.task, r.key, r.id, r.due_at, t.function, t.kind, t.pool, t.priority, t.options,
       t.resets or r.change = 'manual' as resets,
       '{"generation":' || r.generation || ',"key":' || json_quote(r.key) || ',"change":"' || r.change || '","before":'
           || json_quote(r.before) || ',"after":' || json_quote(r.after)
           || iif(r.for_version >= 0, ',"version":' || r.for_version, '') || '}' as args,
       penstock_microseconds(r.due_at) - t.priority * coalesce(
           (select p.ageing from penstock_pool p where p.name = t.pool), 252460800000000
       ) as rank,
       coalesce(r.concurrency_key, (
           select '' from penstock_pool p where p.name = t.pool and p.rate_limit is not null
       )) as gate, r.place,
       (
           select (
               select json_group_array(json(kept.value)) from (
                   select e.value from json_each(case when f.state = 'failed' then coalesce(f.attempts, '[]') else json_insert(
                       coalesce(f.attempts, '[]'), '$[#]', json_object('number', f.attempt,
                           'started_at', coalesce(f.started_at, f.finished_at), 'ended_at', f.finished_at, 'what', f.state)
                   ) end) e
                   where e.key >= json_array_length(coalesce(f.attempts, '[]')) + (f.state <> 'failed') - t.history
                   order by e.key
               ) kept
           ) from penstock_finished_job f where f.id = r.id
       ) as attempts
from penstock_task_record r join penstock_task t on t.id = r.task;

-- The records of tasks with the states of their jobs. `state` is null if a job is lost. The reason of a job that a handler
-- or a hold has put off is no error. Read by administrators of tasks.
create view penstock_task_state as
select r.task, r.key, r.id, r.generation, r.live, r.change, r.changed_at, r.due_at, r.gone,
       case when y.id is not null or s.id is not null then 'pending' when u.id is not null then 'running' else f.state end as state,
       coalesce(y.attempt, s.attempt, u.attempt, f.attempt) as attempt,
       coalesce(y.run_at, s.run_at, u.run_at, f.run_at) as run_at,
       coalesce(u.started_at, f.started_at) as started_at, f.finished_at,
       coalesce(y.error, s.error, u.error, f.error) as error,
       coalesce(y.error, s.error, u.error, f.error) is not null
           and coalesce(y.error, s.error, u.error, f.error) not like 'The task is held%'
           and coalesce(y.error, s.error, u.error, f.error) not like 'Deferred by its handler%' as has_error
from penstock_task_record r
left join penstock_ready_job y on y.id = r.id
left join penstock_scheduled_job s on s.id = r.id
left join penstock_running_job u on u.id = r.id
left join penstock_finished_job f on f.id = r.id;

-- The changes of tables that readers want. Written by backends that start; read by these. Interests in one table share its
-- triggers: `capture` is the number in their names, and `installed` is how they and the table were when they were made.
create table penstock_interest (
    id integer primary key autoincrement,
    name text not null,
    digest text not null,
    source text not null,
    spec text not null,
    capture integer,
    installed text,
    declared_at text not null,
    unique (name, digest)
) strict;

-- The change feed. Written by the triggers of interests, in the transactions that change the rows, and by callers that send
-- messages (insert only); read by readers, and cleared by the pruner once all of them have passed. One row tells all
-- interests of a write, each with its kind, as in `[1,2]` and `enter,leave`; where they capture other columns, `before` and
-- `after` hold a piece for each choice, and a kind names its own: `enter 1`. As one writes at a time, numbers follow the
-- commits; none is ever given twice.
create table penstock_change (
    seq integer primary key autoincrement,
    interests text not null,
    kinds text not null,
    key text,
    before text,
    after text,
    changed_at text not null
) strict;

-- The positions of readers, and their leases. Written by services that read the feed and by programs and administrators that
-- add, place or drop one; read by these, and by the pruner. `fence` rises with each lease that takes the reader.
create table penstock_change_reader (
    name text primary key,
    position text not null,
    lease integer,
    fence integer not null default 0,
    registered_at text not null,
    moved_at text not null
) strict;

-- Topics of messages that are sent, and not captured. Written by backends that start; read by callers that send. The
-- messages are in the change feed, under the number with a minus before it.
create table penstock_topic (
    id integer primary key,
    name text not null unique
) strict;

-- Outboxes: their declarations and their cursors. Written by backends that start, by the relay that
-- reads one, and to pause, move or retry one; read by all of these. `epoch` rises with each change that is not
-- the relay's own: the relay writes only to an outbox whose epoch it knows.
create table penstock_outbox (
    id integer primary key,
    name text not null unique,
    function text not null,
    kind text not null,
    source text not null,
    spec text not null,
    version integer not null,
    keep_for real not null,
    interests text not null default '[]',
    meanings text not null default '{}',
    declared_at text not null,
    epoch integer not null default 0,
    ready integer not null default 0,
    paused integer not null default 0,
    backfill text,
    skips text not null default '[]',
    passed text not null default '[]',
    trouble text,
    delivered integer not null default 0,
    delivered_at text,
    rate real not null default 0
) strict;

-- Messages that are not next any more and not delivered either: they wait behind another one of their key, or for rows that
-- are older, or have failed. Written and read by relays, and to retry or skip one. A `turned` one is an insert here,
-- and a mere change in the feed.
create table penstock_outbox_message (
    outbox integer not null references penstock_outbox (id) on delete cascade,
    seq integer not null,
    key text not null,
    state text not null constraint aside_state check (state = 'waiting' or state = 'halted' or state = 'parked'),
    interest integer not null,
    kind text not null,
    row_key text,
    before text,
    after text,
    changed_at text not null,
    attempts integer not null default 0,
    failed_at text,
    retry_at text,
    error text,
    traceback text,
    deaths integer not null default 0,
    used_up integer not null default 0,
    turned integer not null default 0,
    primary key (outbox, seq)
) strict, without rowid;
create index penstock_outbox_message_state on penstock_outbox_message (outbox, state, seq);
create index penstock_outbox_message_key on penstock_outbox_message (outbox, key) where state = 'halted';
create index penstock_outbox_message_due on penstock_outbox_message (outbox, retry_at, seq) where state = 'halted';
create index penstock_outbox_message_row on penstock_outbox_message (outbox, row_key);
create index penstock_outbox_message_turned on penstock_outbox_message (outbox, seq) where turned;

-- ----- for plain SQL, in any language: SQLite has no functions of its own making, so here a view takes rows

-- The id of the job that was enqueued last in plain SQL. Written and read by penstock_enqueue.
create table penstock_enqueued (
    one integer primary key check (one = 1),
    id blob not null
) strict;

-- All bytes in order: numbers become bytes by their place.
create view penstock_byte as
select cast(
    x'000102030405060708090a0b0c0d0e0f101112131415161718191a1b1c1d1e1f'
    || x'202122232425262728292a2b2c2d2e2f303132333435363738393a3b3c3d3e3f'
    || x'404142434445464748494a4b4c4d4e4f505152535455565758595a5b5c5d5e5f'
    || x'606162636465666768696a6b6c6d6e6f707172737475767778797a7b7c7d7e7f'
    || x'808182838485868788898a8b8c8d8e8f909192939495969798999a9b9c9d9e9f'
    || x'a0a1a2a3a4a5a6a7a8a9aaabacadaeafb0b1b2b3b4b5b6b7b8b9babbbcbdbebf'
    || x'c0c1c2c3c4c5c6c7c8c9cacbcccdcecfd0d1d2d3d4d5d6d7d8d9dadbdcdddedf'
    || x'e0e1e2e3e4e5e6e7e8e9eaebecedeeeff0f1f2f3f4f5f6f7f8f9fafbfcfdfeff'
    as blob
) as bytes;

-- Takes rows, each a call of a function in a pool, as part of the transaction. Read, it has one row: the public id, as
-- schema/ids.py spells it, of the job that was enqueued last, which inside of a transaction is one's own.
create view penstock_enqueue as
with recursive letter (place, id, digits) as (
    select 0, 'job_', '0' || hex(id) || '00' from penstock_enqueued
    union all
    select place + 1, id || substr('0123456789abcdefghjkmnpqrstvwxyz', 1 + ((
        ((instr('0123456789ABCDEF', substr(digits, (5 * place + 2) / 4 + 1, 1)) - 1) << 8)
        | ((instr('0123456789ABCDEF', substr(digits, (5 * place + 2) / 4 + 2, 1)) - 1) << 4)
        | (instr('0123456789ABCDEF', substr(digits, (5 * place + 2) / 4 + 3, 1)) - 1)
    ) >> (7 - (5 * place + 2) % 4) & 31), 1), digits
    from letter where place < 26
)
select id, null as pool, null as function, null as args, null as run_at, null as priority, null as max_attempts,
       null as initial_backoff, null as base, null as timeout, null as on_complete, null as context, null as keep,
       null as concurrency_key
from letter where place = 26;

-- Options without a value are as a pool of the program has them by default. Whether the arguments fit the function is seen
-- when it is called. A new id is laid out as in clock.py: a UUIDv7.
create trigger penstock_enqueue_insert instead of insert on penstock_enqueue begin
    select raise(abort, 'penstock: there is no such pool. Start the program that declares it on this database once.')
    where not exists (select 1 from penstock_pool p where p.name = new.pool);
    select raise(abort, 'penstock: there is no such function. Write module:name, and start its program on this database once.')
    where not exists (select 1 from penstock_function f where f.name = new.function);
    select raise(abort, 'penstock: args is no JSON object. Name each argument, as in {"to": "Ada"}.')
    where new.args is not null and not (json_valid(new.args) and json_type(new.args) is 'object');
    select raise(abort, 'penstock: run_at is no time, or more than five years ahead. Write it as 2030-01-31T09:00:00Z.')
    where new.run_at is not null and not ifnull(julianday(new.run_at) <= julianday('now', '+1830 days'), false);
    select raise(abort, 'penstock: priority is no whole number between -32000 and 32000. Leave it away for 0.')
    where new.priority is not null and not (typeof(new.priority) = 'integer' and new.priority between -32000 and 32000);
    select raise(abort, 'penstock: max_attempts is no whole number from 1, or not 1 for what is no action.')
    where new.max_attempts is not null and not (typeof(new.max_attempts) = 'integer' and (new.max_attempts = 1 or (
        new.max_attempts > 1 and exists (select 1 from penstock_function f where f.name = new.function and f.kind = 'action')
    )));
    select raise(abort, 'penstock: initial_backoff is no number of seconds up to 365 days, or base none from 1 to 1e9. Leave them away.')
    where not (
        typeof(ifnull(new.initial_backoff, 0)) in ('integer', 'real')
        and ifnull(new.initial_backoff, 0) between 0 and 365 * 86400
        and typeof(ifnull(new.base, 1)) in ('integer', 'real') and ifnull(new.base, 1) between 1 and 1e9
    );
    select raise(abort, 'penstock: timeout is no number of seconds greater than 0, or more than five years. Leave it away.')
    where not (
        typeof(ifnull(new.timeout, 1)) in ('integer', 'real') and ifnull(new.timeout, 1) between 1e-9 and 1830 * 86400
    );
    select raise(abort, 'penstock: keep is no number of seconds greater than 0, or more than 365,000 days. Choose a shorter one.')
    where not (
        typeof(ifnull(new.keep, 1)) in ('integer', 'real') and ifnull(new.keep, 1) between 1e-9 and 365000 * 86400
    );
    select raise(abort, 'penstock: on_complete is the name of no mutation. Write module:name.')
    where new.on_complete is not null
      and not exists (select 1 from penstock_function f where f.name = new.on_complete and f.kind = 'mutation');
    select raise(abort, 'penstock: context is no JSON. Write a text with its quotes, as in "Ada".')
    where new.context is not null and not json_valid(new.context);
    select raise(abort, 'penstock: concurrency_key is no text of 1 to 200 characters. Leave it away for none.')
    where new.concurrency_key is not null
      and not (typeof(new.concurrency_key) = 'text' and length(new.concurrency_key) between 1 and 200);
    insert or replace into penstock_enqueued (one, id)
    select 1, cast(
        substr(b.bytes, 1 + ((t.ms >> 40) & 255), 1)
            || substr(b.bytes, 1 + ((t.ms >> 32) & 255), 1)
            || substr(b.bytes, 1 + ((t.ms >> 24) & 255), 1)
            || substr(b.bytes, 1 + ((t.ms >> 16) & 255), 1)
            || substr(b.bytes, 1 + ((t.ms >> 8) & 255), 1)
            || substr(b.bytes, 1 + ((t.ms >> 0) & 255), 1)
            || substr(b.bytes, 113 + (random() & 15), 1) || randomblob(1)
            || substr(b.bytes, 129 + (random() & 63), 1) || randomblob(7)
        as blob
    ) from (select cast((julianday('now') - 2440587.5) * 86400000 as integer) as ms) t, penstock_byte b;
    -- All are scheduled at first. The rank is as jobs/order.py says; without ageing a step of priority is 2922 days.
    -- A context is kept as text, also one that is a number or comes of json_object(…), which would become a part of the
    -- JSON.
    insert into penstock_scheduled_job (id, pool, function, kind, args, priority, rank, run_at, options, on_complete,
        attempt, enqueued_at, gated, waiting, concurrency_key)
    select e.id, p.name, f.name, f.kind, ifnull(new.args, '{}'), ifnull(new.priority, 0),
           strftime('%s', t.starts) * 1000000 + substr(strftime('%f', t.starts), 4) * 1000
               - ifnull(new.priority, 0) * ifnull(p.ageing, 252460800000000),
           t.starts, json_patch('{}', json_object(
               'retry', case when new.max_attempts > 1
                   then json_array(new.max_attempts, ifnull(new.initial_backoff, 0.25), ifnull(new.base, 2), null) end,
               'timeout', new.timeout, 'keep', ifnull(new.keep, 86400), 'context', new.context || '',
               'concurrency_key', new.concurrency_key
           )), new.on_complete, 0, t.moment, t.gated, t.gated and t.starts <= t.moment, ifnull(new.concurrency_key, '')
    from penstock_enqueued e, penstock_function f, penstock_pool p, (
        select strftime('%Y-%m-%dT%H:%M:%f000Z', 'now') as moment,
               max(strftime('%Y-%m-%dT%H:%M:%f000Z', 'now'),
                   strftime('%Y-%m-%dT%H:%M:%f000Z', ifnull(new.run_at, 'now'))) as starts,
               new.concurrency_key is not null
                   or (select o.rate_limit is not null from penstock_pool o where o.name = new.pool) as gated
    ) t where f.name = new.function and p.name = new.pool;
    insert into penstock_ready_job
        (id, pool, function, kind, args, priority, rank, run_at, options, on_complete, attempt, enqueued_at)
    select id, pool, function, kind, args, priority, rank, run_at, options, on_complete, attempt, enqueued_at
    from penstock_scheduled_job
    where id = (select id from penstock_enqueued) and run_at <= enqueued_at and not gated;
    delete from penstock_scheduled_job
    where id = (select id from penstock_enqueued) and run_at <= enqueued_at and not gated;
end;

-- Takes rows, each a message to a topic, as part of the transaction. It has none.
create view penstock_send as select null as topic, null as payload, null as key where false;

-- Whether its handler takes a message is seen when it is handed over.
create trigger penstock_send_insert instead of insert on penstock_send begin
    select raise(abort, 'penstock: there is no such topic. Start the program that declares an outbox for it on this database once.')
    where not exists (select 1 from penstock_topic t where t.name = new.topic);
    select raise(abort, 'penstock: payload is no JSON. Write a text with its quotes, as in "Ada", and nothing as null.')
    where not (typeof(new.payload) = 'text' and json_valid(new.payload));
    select raise(abort, 'penstock: key is no text of 1 to 200 characters. Leave it away for none.')
    where new.key is not null
      and not (typeof(new.key) = 'text' and length(new.key) between 1 and 200 and instr(new.key, char(0)) = 0);
    insert into penstock_change (interests, changed_at, kinds, key, after)
    select json_array(-t.id), strftime('%Y-%m-%dT%H:%M:%f000Z', 'now'), 'message', new.key, new.payload
    from penstock_topic t where t.name = new.topic;
end;
