create table penstock.finished_job_long partition of penstock.finished_job for values in (-1);
do $$ begin
    for day in 0..15 loop
        execute format('create table penstock.finished_job_%s partition of penstock.finished_job for values in (%s)', day, day);
    end loop;
end $$;
create index finished_job_long_expires_at on penstock.finished_job_long (expires_at);
-- Failed jobs of tasks, to be counted. As text, since a value that somebody wrote by hand may be no number.
create index finished_job_long_failed on penstock.finished_job_long ((options::jsonb ->> 'task')) where state = 'failed';

-- Queues of mutations that conflict; nobody writes or reads these tables. A mutation locks one of them before its
-- snapshot, and thus runs after those that locked it earlier. A lock of the first one is a lock of all.
create table penstock.mutation_queue ();
do $$ begin
    for queue in 1..8 loop
        execute format('create table penstock.mutation_queue_%s () inherits (penstock.mutation_queue)', queue);
    end loop;
end $$;

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

-- The job for the last generation of each record: its arguments, its rank as jobs/order.py says, the key of the gate that it
-- passes if it passes one, and the attempts of earlier jobs as its history. Read by planners, and by workers that end such
-- jobs.
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
           where f.id = r.id and f.day = -1
       ) as attempts
from penstock.task_record r join penstock.task t on t.id = r.task;

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

-- A row of the change feed is a captured change, or a message. Triggers of interests insert it in the transaction that changes
-- the row, and callers that send messages; it goes when the pruner truncates its slot, once all readers have passed it. One
-- row tells all interests of a write, each with its kind, as in `1,2` and `enter,leave`. Where they capture different
-- columns, `before` and `after` hold a piece for each choice, and a kind names its own: `enter 1`. A writer that has seen a
-- change gets a greater number; `xid` is the transaction. Slots are used in a ring.
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

-- Interests on demand that are captured. The sequence of each holds the transaction from which on it is not; written by live
-- queries, and read by triggers.
create view penstock.demanded as select id as interest from penstock.interest
where pg_sequence_last_value(to_regclass('penstock.demand_' || id))
    > pg_snapshot_xmax(pg_current_snapshot())::text::bigint;

-- One row: the slot into which changes are written, and the server. Written by the pruner, and by readers that find the
-- database restored on another server; read by these. The triggers of interests read `current_slot`.
-- `dropped` is the greatest transaction whose changes were truncated.
create table penstock.change_slot (
    slot smallint not null,
    since timestamptz not null default now(),
    origin text not null,
    dropped bigint not null default 0
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
