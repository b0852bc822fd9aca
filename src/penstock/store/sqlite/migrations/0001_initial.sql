create index penstock_finished_job_expires_at on penstock_finished_job (expires_at);
-- Failed jobs of tasks, to be counted.
create index penstock_finished_job_failed on penstock_finished_job (options ->> 'task') where state = 'failed' and options ->> 'task' is not null;

-- The job for the last generation of each record: its arguments, its rank as jobs/order.py says, the key of the gate that it
-- passes if it passes one, and the attempts of earlier jobs as its history. Read by planners, and by workers that end such
-- jobs.
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

-- A row of the change feed is a captured change, or a message. Triggers of interests insert it in the transaction that changes
-- the row, and callers that send messages; the pruner deletes it once all readers have passed. One row tells all interests
-- of a write, each with its kind, as in `[1,2]` and `enter,leave`. Where they capture different columns, `before` and `after`
-- hold a piece for each choice, and a kind names its own: `enter 1`. With one writer at a time, numbers follow the commits;
-- none is given twice.
create table penstock_change (
    seq integer primary key autoincrement,
    interests text not null,
    kinds text not null,
    key text,
    before text,
    after text,
    changed_at text not null
) strict;

-- One row: the greatest number of a change that was cleared. Written by the pruner; read by live queries.
create table penstock_change_dropped (
    seq integer not null
) strict;
insert into penstock_change_dropped (seq) values (0);

-- Interests on demand that are captured: until which number of a change. Written by live queries; read by triggers.
create table penstock_demand (
    interest integer primary key references penstock_interest (id) on delete cascade,
    until integer not null
) strict;
create view penstock_demanded as select interest from penstock_demand
where until >= coalesce((select seq from sqlite_sequence where name = 'penstock_change'), 0);

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
