create schema if not exists penstock;

-- Applied migrations. Written and read by migrations.
create table penstock.migration (
    name text primary key,
    applied_at timestamptz not null default now()
);

-- Jobs that may start now. Written by transactions that enqueue (insert only) and by workers; read by workers.
-- Small whatever else is stored: claiming reads nothing but the heads of its two indexes. A job with an ending waits only
-- for its on_complete to run. `attempts` are the failed ones, as JSON.
create table penstock.ready_job (
    seq bigint generated always as identity,
    id uuid primary key,
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

-- Jobs that may start later, or when the gate of their pool lets them: the `gated` ones. Of these, `waiting` ones
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
-- complete is under lease 0, and a caller with its token ends it. `progress` is the job's own report.
-- `marked` says that its handler has completed it, so that it ends as success even if the handler raises; handlers
-- of reactive tasks write it, also in transactions of the user's own.
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

-- Jobs that have ended, until their status expires or they are retried. Written by workers, by the pruner and by
-- administrators who retry (never in a transaction of a user's function); read by all.
-- One partition for each day of expiry, used in a ring of 16 and truncated as a whole; -1 takes all that stays longer.
create table penstock.finished_job (
    slot smallint not null,
    id uuid not null,
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
    attempts text,
    primary key (id, slot)
) partition by list (slot);
create table penstock.finished_job_long partition of penstock.finished_job for values in (-1);
do $$ begin
    for slot in 0..15 loop
        execute format('create table penstock.finished_job_%s partition of penstock.finished_job for values in (%s)', slot, slot);
    end loop;
end $$;
create index finished_job_long_expires_at on penstock.finished_job_long (expires_at);
-- Failed jobs of tasks, to be counted. As text, since a value that somebody wrote by hand may be no number.
create index finished_job_long_failed on penstock.finished_job_long ((options::jsonb ->> 'task')) where state = 'failed';

-- Wishes that a job be canceled. Written by transactions that cancel (insert only); read and cleared by workers.
create table penstock.cancel_request (
    job_id uuid not null,
    requested_at timestamptz not null
);
create index cancel_request_job on penstock.cancel_request (job_id);

-- Leases of workers, planners, relays, and processes that rebuild an outbox; the number fences each move under it.
-- Written and read by these, and by the process that takes over an expired one.
create table penstock.lease (
    id bigint generated always as identity primary key,
    worker text not null,
    started_at timestamptz not null,
    expires_at timestamptz not null
);

-- Lease 0 never ends: under it are jobs that no worker runs, as an outside system will complete them.
insert into penstock.lease (id, worker, started_at, expires_at) overriding system value
values (0, 'outside', '2000-01-01T00:00:00Z', '9999-12-31T00:00:00Z');

-- Locks that are held, or have run out. `fence` is the number of a holder: it rises with each one, and none is given twice.
-- It is a key of the table, so that a transaction that checks it keeps others from taking the lock over until
-- it ends, without keeping its holder from renewing it. `attempt` identifies the request, if the answer is lost; `wanted` is
-- whether somebody waits. Written by holders and waiters of a lock, and by the pruner; read by these.
create table penstock.lock (
    fence bigint generated always as identity primary key,
    key text collate "C" not null unique,
    attempt uuid not null,
    holder text not null,
    taken_at timestamptz not null,
    expires_at timestamptz not null,
    wanted boolean not null default false
);

-- Queues of mutations that conflict; nobody writes or reads these tables. A mutation locks one of them before its
-- snapshot, and thus runs after those that locked it earlier. A lock of the first one is a lock of all.
create table penstock.mutation_queue ();
create table penstock.mutation_queue_1 () inherits (penstock.mutation_queue);
create table penstock.mutation_queue_2 () inherits (penstock.mutation_queue);
create table penstock.mutation_queue_3 () inherits (penstock.mutation_queue);
create table penstock.mutation_queue_4 () inherits (penstock.mutation_queue);
create table penstock.mutation_queue_5 () inherits (penstock.mutation_queue);
create table penstock.mutation_queue_6 () inherits (penstock.mutation_queue);
create table penstock.mutation_queue_7 () inherits (penstock.mutation_queue);
create table penstock.mutation_queue_8 () inherits (penstock.mutation_queue);

-- Tokens with which outside systems complete jobs, as hashes; `told` is the outcome of one. Written by workers for
-- actions that ask for one, and by the callers that redeem one; read by these, and by workers for expired ones.
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

-- Pools whose parallelism is limited. Written by backends that start and by changes of a limit; read by workers.
-- `declared` is the program's last limit, `max_parallelism` the one that holds now; `epoch` rises with each change of it, or
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
);

-- The concurrency key with the last turn in a pool. Its row is the lock of the pool's gate: one worker at a time lets jobs
-- through. Written and read by workers.
create table penstock.turn (
    pool text primary key,
    concurrency_key text not null default ''
);

-- Keys of jobs, of which there is one at a time: until it starts, or until it ends. Written by transactions that enqueue
-- (insert only); deleted by workers, by a mutation that is a job, which ends its own, and by a caller that finds that the
-- job of a key was never stored.
create table penstock.job_key (
    pool text not null,
    key text not null,
    job_id uuid not null,
    until_start boolean not null,
    primary key (pool, key)
);
create index job_key_job on penstock.job_key (job_id);

-- Token counts of rate limits. Those of pools are named after them, with a colon, and are written by workers; the others
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
);
create index rate_limit_full_at on penstock.rate_limit (full_at);
create index rate_limit_open_at on penstock.rate_limit (name, open_at);

-- Crons: their schedules, jobs and last decided times. Written by backends that start (their program's declarations),
-- by transactions that create, pause or remove one, and by schedulers; read by schedulers. All planned times up to
-- last_at are decided on; the scheduler that locks the row decides on the next. job_id is its last run, of planned_at.
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

-- The functions of the programs that run on this database, with their kinds. Written by backends that start; read
-- by penstock.enqueue. A name stays when no program has it any more: its jobs are parked, and shown.
create table penstock.function (
    name text primary key,
    kind text not null check (kind in ('query', 'mutation', 'action'))
);

-- Reactive tasks of the programs that run on this database. Written by backends that start (their program's declarations),
-- and to pause, throttle or reconcile one; read by planners and workers. `spec` is the declaration, as JSON;
-- `options` are those of its jobs, as jobs have them. Until `held_until` none of its jobs starts. `failures` are the
-- times of its last failed attempts, which workers write and read for its circuit breaker. `begun` counts how often
-- the scan of all rows was begun anew, so that the end of an earlier scan does not end the later one.
-- `earlier` are the interests that it has had when it was declared; the feed may still have their changes.
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
    failures timestamptz[],
    reconciling text,
    reconciled_at timestamptz,
    begun integer not null default 0,
    earlier integer[] not null default '{}'
);

-- The rows that a task has to do with, each with the last change that it wants to hear of. `generation` rises with each
-- of these; a job for the row is `live` until it has ended for the last generation, and `idle` tells the planner whether
-- there was none. The job is in one of the tables above, with the id of the record. From
-- `forget_at` on the record is forgotten. `version` is the last version of the handler that has run for the row,
-- `for_version` the one that runs for it again though the row has not changed; -1 stands for none. Written by planners, and
-- by workers and mutations that end such jobs, and by administrators of tasks (never in a transaction of a user's function);
-- read by these.
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
) with (fillfactor = 50);  -- each run updates its record once, on the same page then
create index task_record_forget_at on penstock.task_record (forget_at) where forget_at is not null;

-- The arguments of a job of a task, and its rank as jobs/order.py says (in microseconds; 252460800000000 is NO_AGEING).
-- Part of the statements that make such jobs.
create function penstock.task_args(generation bigint, key text, change text, before text, after text, version integer) returns text
language sql stable parallel safe as $$
    select '{"generation":' || generation || ',"key":' || to_json(key) || ',"change":"' || change || '","before":'
        || coalesce(to_json(before)::text, 'null') || ',"after":' || coalesce(to_json(after)::text, 'null')
        || case when version >= 0 then ',"version":' || version else '' end || '}'
$$;
create function penstock.task_rank(due_at timestamptz, priority smallint, ageing bigint) returns bigint
language sql stable parallel safe as $$
    select (extract(epoch from due_at) * 1000000)::bigint - priority * coalesce(ageing, 252460800000000)
$$;

-- The job that is to be for the last generation of each record: its arguments, its rank as jobs/order.py says, the key of
-- the gate that it passes if it passes one, and the attempts of the last ones as its history. Read by planners, and by
-- workers that end such jobs.
create view penstock.task_job as
select r.task, r.key, r.id, r.due_at, t.function, t.kind, t.pool, t.priority, t.options,
       t.resets or r.change = 'manual' as resets,
       penstock.task_args(r.generation, r.key, r.change, r.before, r.after, r.for_version) as args,
       penstock.task_rank(r.due_at, t.priority, (select p.ageing from penstock.pool p where p.name = t.pool)) as rank,
       coalesce(r.concurrency_key, (
           select '' from penstock.pool p where p.name = t.pool and p.rate_limit is not null
       )) as gate, r.place,
       (
           select jsonb_agg(kept.entry order by kept.place)::text
           from penstock.finished_job f cross join lateral (
               select entry, place from jsonb_array_elements(
                   coalesce(f.attempts::jsonb, '[]') || case when f.state = 'failed' then '[]' else jsonb_build_array(
                       jsonb_build_object('number', f.attempt, 'started_at', coalesce(f.started_at, f.finished_at),
                           'ended_at', f.finished_at, 'what', f.state)
                   ) end
               ) with ordinality as a (entry, place)
               order by place desc limit t.history
           ) kept
           where f.id = r.id and f.slot = -1
       ) as attempts
from penstock.task_record r join penstock.task t on t.id = r.task;

-- The records of tasks with the states of their jobs. `state` is null if a job is lost. The reason of a job that a handler
-- or a hold has put off is no error. Read by administrators of tasks.
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
left join penstock.finished_job f on f.id = r.id and f.slot = -1;

-- The changes of tables that readers want. Written by backends that start; read by these. Interests in one table share its
-- triggers: `capture` is the number in their names, and `installed` is how they and the table were when they were made.
create table penstock.interest (
    id integer generated always as identity primary key,
    name text not null,
    digest text not null,
    source text not null,
    spec text not null,
    capture integer,
    installed text,
    declared_at timestamptz not null,
    unique (name, digest)
);

-- The table of each interest as JSON: its columns, partitions, and the triggers of its capture with their functions.
-- `each`: the function that marks a table of which each change counts. `heirs`: whether other tables inherit from it.
-- `plain`: rows are inserted through no other table. `ordered`: no trigger of others changes inserted rows before the
-- statement ends.
-- A name with a schema is looked up in the catalog, as `to_regclass` raises where a role may not use the schema.
create view penstock.interest_found as
select i.id, (select jsonb_build_object(
        'kind', c.relkind,
        'each', 'each_' || md5((pg_identify_object('pg_class'::regclass, c.oid, 0)).identity),
        'plain', c.relkind = 'r' and not c.relispartition,
        'ordered', not exists (select from pg_trigger t join pg_proc f on f.oid = t.tgfoid
            where t.tgrelid = c.oid and not t.tgisinternal and t.tgtype & 71 = 5 -- after insert, for each row
                and f.pronamespace <> 'penstock'::regnamespace),
        'heirs', c.relkind = 'r' and exists (select from pg_inherits h where h.inhparent = c.oid),
        'columns', (select jsonb_object_agg(a.attname, concat(
                format_type(coalesce(nullif(y.typbasetype, 0), y.oid),
                    case y.typtype when 'd' then y.typtypmod else a.atttypmod end),
                case a.attgenerated when 'v' then ' virtual' end))
            from pg_attribute a join pg_type y on y.oid = a.atttypid
            where a.attrelid = c.oid and a.attnum > 0 and not a.attisdropped),
        'partitions', (select jsonb_agg(p.relid::text order by p.relid::text)
            from pg_partition_tree(c.oid) p where p.level > 0),
        'triggers', (select jsonb_agg(jsonb_build_object(
                'name', t.tgname, 'table', t.tgrelid::regclass::text, 'enabled', t.tgenabled, 'here', t.tgrelid = c.oid)
                order by t.tgrelid, t.tgname)
            from pg_trigger t where t.tgparentid = 0 and t.tgfoid = any(own.oids)),
        'bodies', (select jsonb_object_agg(f.proname, hashtextextended(f.prosrc, 0)) from pg_proc f where f.oid = any(own.oids)))
    from parse_ident(i.source) as p (named) join pg_class c on c.oid = case
        when cardinality(p.named) = 1 then to_regclass(i.source)
        else (select q.oid from pg_class q join pg_namespace s on s.oid = q.relnamespace
            where s.nspname = p.named[cardinality(p.named) - 1]::name
                and q.relname = p.named[cardinality(p.named)]::name) end) as found
from penstock.interest i cross join lateral (
    select array_agg(f.oid) as oids from pg_proc f where f.pronamespace = 'penstock'::regnamespace and f.proname = any(array(
        select 'change_' || i.capture || '_' || event from unnest('{insert,update,delete,truncate}'::text[]) event
    ))
) own;

-- The change feed. Written by the triggers of interests, in the transactions that change the rows, and by callers that send
-- messages (insert only); read by readers. One row tells all interests of a write, each with its kind, as in `1,2` and
-- `enter,leave`; where they capture other columns, `before` and `after` hold a piece for each choice, and a kind names its
-- own: `enter 1`. Numbers are given one by one, so that a writer that has seen a change gets a greater one; xid is the
-- transaction. Slots are used in a ring, and truncated once all readers have passed their changes.
create sequence penstock.change_seq cache 1;
grant usage on sequence penstock.change_seq to public; -- who sends messages inserts into the feed as themselves
create table penstock.change (
    slot smallint not null,
    seq bigint not null default nextval('penstock.change_seq'),
    xid bigint not null,
    interests text not null,
    kinds text not null,
    key text,
    before text,
    after text,
    changed_at timestamptz not null
) partition by list (slot);
do $$ begin
    for slot in 0..3 loop
        execute format('create table penstock.change_%s partition of penstock.change for values in (%s)', slot, slot);
    end loop;
end $$;
create index change_xid on penstock.change (xid);
create index change_seq_order on penstock.change (seq);

-- One row: the slot into which changes are written, and the server. Written by the pruner, and by readers that find the
-- database restored on another server; read by these. The triggers of interests read `current_slot`.
create table penstock.change_slot (
    slot smallint not null,
    since timestamptz not null default now(),
    origin text not null
);

-- The positions of readers, and their leases. Written by services that read the feed and by programs and administrators that
-- add, place or drop one; read by these, and by the pruner. `fence` rises with each lease that takes the reader.
create table penstock.change_reader (
    name text primary key,
    position text not null,
    lease bigint,
    fence bigint not null default 0,
    registered_at timestamptz not null,
    moved_at timestamptz not null
);

-- The same slot as a constant in the plans of triggers, which are made anew when it is another one. The pruner replaces it.
create function penstock.current_slot() returns smallint language sql immutable as 'select 0::smallint';

-- The server and the database whose transaction numbers the feed holds.
create function penstock.origin() returns text language plpgsql stable as $$
declare
    here text := (select oid from pg_database where datname = current_database());
begin
    return (select system_identifier from pg_control_system()) || '/' || here;
exception when insufficient_privilege then
    return here;
end $$;
insert into penstock.change_slot (slot, origin) values (0, penstock.origin());

-- Topics of messages that are sent, and not captured. Written by backends that start; read by callers that send. The
-- messages are in the change feed, under the number with a minus before it.
create table penstock.topic (
    id integer generated always as identity primary key,
    name text not null unique
);

-- Outboxes: their declarations and their cursors. Written by backends that start, by the relay that
-- reads one, and to pause, move or retry one; read by all of these. `epoch` rises with each change that is not
-- the relay's own: the relay writes only to an outbox whose epoch it knows.
create table penstock.outbox (
    id integer generated always as identity primary key,
    name text not null unique,
    function text not null,
    kind text not null,
    source text not null,
    spec text not null,
    version integer not null,
    keep_for interval not null,
    interests integer[] not null default '{}',
    meanings text not null default '{}',
    declared_at timestamptz not null,
    epoch bigint not null default 0,
    ready boolean not null default false,
    paused boolean not null default false,
    backfill text,
    skips bigint[] not null default '{}',
    passed text not null default '[]',
    trouble text,
    delivered bigint not null default 0,
    delivered_at timestamptz,
    rate double precision not null default 0
);

-- Messages that are not next any more and not delivered either: they wait behind another one of their key, or for rows that
-- are older, or have failed. Written and read by relays, and to retry or skip one. A `turned` one is an insert here,
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
);
create index outbox_message_state on penstock.outbox_message (outbox, state, seq);
-- Keys have any length, and entries of an index have not. Spelled otherwise, this state leads a query for keys to no other
-- index, and no other query to this one.
create index outbox_message_key on penstock.outbox_message (outbox, left(key, 500)) where state || '' = 'halted';
create index outbox_message_row on penstock.outbox_message (outbox, left(row_key, 500));
create index outbox_message_due on penstock.outbox_message (outbox, retry_at, seq) where state = 'halted';
create index outbox_message_turned on penstock.outbox_message (outbox, seq) where turned;

-- ----- for plain SQL, in any language

-- The public id of a job, as schema/ids.py spells it: its 128 bits in Crockford's base 32.
create function penstock.job_id(id uuid) returns text language sql immutable strict parallel safe as $$
    select 'job_' || string_agg(
        substr(
            '0123456789abcdefghjkmnpqrstvwxyz',
            substring(b'00' || ('x' || replace(id::text, '-', ''))::bit(128) from place * 5 + 1 for 5)::bit(5)::integer + 1,
            1
        ), '' order by place
    ) from generate_series(0, 25) place
$$;

-- A new id, as clock.py lays it out: a UUIDv7, here made of a UUIDv4 with milliseconds in its first six bytes.
create function penstock.new_job_id() returns uuid language sql volatile as $$
    select encode(set_byte(bytes, 6, get_byte(bytes, 6) | 48), 'hex')::uuid
    from (
        select overlay(
            uuid_send(gen_random_uuid())
            placing substring(int8send(floor(extract(epoch from clock_timestamp()) * 1000)::bigint) from 3) from 1 for 6
        ) as bytes
    ) made
$$;

-- Raises the errors of penstock.enqueue and penstock.send.
create function penstock.refuse(message text, hint text) returns void language plpgsql as $$
begin
    raise exception using errcode = 'invalid_parameter_value', message = 'penstock: ' || refuse.message, hint = refuse.hint;
end $$;

-- Enqueues a call of a function in a pool, as part of the transaction; the id of its job. Options without a value are as a
-- pool of the program has them by default. Whether the arguments fit the function is seen when it is called.
create function penstock.enqueue(
    pool text,
    function text,
    args jsonb default '{}',
    run_at timestamptz default null,
    priority integer default 0,
    max_attempts integer default 1,
    initial_backoff double precision default 0.25,
    base double precision default 2,
    timeout interval default null,
    on_complete text default null,
    context jsonb default null,
    keep interval default interval '1 day',
    concurrency_key text default null
) returns text language plpgsql volatile as $$
#variable_conflict use_variable
declare
    new_id uuid := penstock.new_job_id();
    moment timestamptz := clock_timestamp();
    function_kind text := (select f.kind from penstock.function f where f.name = enqueue.function);
    known penstock.pool;
    gated boolean;
    starts timestamptz;
    rank bigint;
    asked text;
begin
    select * into known from penstock.pool p where p.name = enqueue.pool;
    if known.name is null then
        perform penstock.refuse(format('there is no pool %L', pool), 'Start the program that declares it on this database once.');
    elsif function_kind is null then
        perform penstock.refuse(
            format('there is no function %L', function),
            'Write module:name, and start the program that declares it on this database once.'
        );
    elsif jsonb_typeof(args) is distinct from 'object' then
        perform penstock.refuse('args is no object', 'Name each argument, as in {"to": "Ada"}.');
    elsif run_at > moment + interval '1830 days' then
        perform penstock.refuse('run_at is more than five years ahead', 'Choose an earlier time.');
    elsif priority is null or priority not between -32000 and 32000 then
        perform penstock.refuse('priority is not between -32000 and 32000', 'Leave it away for 0.');
    elsif max_attempts is null or max_attempts < 1 or (max_attempts > 1 and function_kind <> 'action') then
        perform penstock.refuse('max_attempts is less than 1, or not 1 for what is no action', 'Leave it away for 1.');
    elsif not coalesce(initial_backoff between 0 and 365 * 86400 and base between 1 and 1e9, false) then
        perform penstock.refuse('initial_backoff is not from 0 to 365 days, or base not from 1 to 1e9', 'Leave them away.');
    elsif timeout <= interval '0' or timeout > interval '1830 days' then
        perform penstock.refuse('timeout is not greater than 0, or more than five years', 'Leave it away.');
    elsif not coalesce(keep > interval '0' and keep <= interval '365000 days', false) then
        perform penstock.refuse('keep is not greater than 0, or more than 365,000 days', 'Choose a shorter one.');
    elsif length(concurrency_key) not between 1 and 200 then
        perform penstock.refuse('concurrency_key has not 1 to 200 characters', 'Leave it away for none.');
    elsif on_complete is not null
        and not exists (select from penstock.function f where f.name = enqueue.on_complete and f.kind = 'mutation') then
        perform penstock.refuse(format('on_complete: there is no mutation %L', on_complete), 'Write module:name.');
    end if;
    starts := greatest(run_at, moment);
    -- as jobs/order.py says; without ageing a step of priority is 2922 days
    rank := floor(extract(epoch from starts) * 1000000)::bigint - priority * coalesce(known.ageing, 252460800000000);
    gated := concurrency_key is not null or known.rate_limit is not null;
    asked := json_strip_nulls(json_build_object(
        'retry', case when max_attempts > 1 then json_build_array(max_attempts, initial_backoff, base, null) end,
        'timeout', extract(epoch from timeout),
        'keep', extract(epoch from keep),
        'context', context::text,
        'concurrency_key', concurrency_key
    ))::text;
    if gated or starts > moment then
        insert into penstock.scheduled_job (id, pool, function, kind, args, priority, rank, run_at, options, on_complete,
            attempt, enqueued_at, gated, waiting, concurrency_key)
        values (new_id, pool, function, function_kind, args::text, priority, rank, starts, asked, on_complete,
            0, moment, gated, gated and starts <= moment, coalesce(concurrency_key, ''));
    else
        insert into penstock.ready_job
            (id, pool, function, kind, args, priority, rank, run_at, options, on_complete, attempt, enqueued_at)
        values (new_id, pool, function, function_kind, args::text, priority, rank, starts, asked, on_complete, 0, moment);
    end if;
    return penstock.job_id(new_id);
end $$;

-- Sends a message to a topic, as part of the transaction. Whether its handler takes it is seen when it is handed over.
create function penstock.send(topic text, payload jsonb, key text default null) returns void language plpgsql volatile as $$
#variable_conflict use_variable
begin
    if payload is null then
        perform penstock.refuse('payload has no value', 'Write null as JSON does: ''null''.');
    elsif length(key) not between 1 and 200 then
        perform penstock.refuse('key has not 1 to 200 characters', 'Leave it away for none.');
    end if;
    insert into penstock.change (slot, xid, interests, changed_at, kinds, key, after)
    select penstock.current_slot(), pg_current_xact_id()::text::bigint, (-t.id)::text, clock_timestamp(), 'message', key,
        payload::text
    from penstock.topic t where t.name = topic;
    if not found then
        perform penstock.refuse(
            format('there is no topic %L', topic), 'Start the program that declares an outbox for it on this database once.'
        );
    end if;
end $$;
