-- {changed}: what a record is after a change, if it was there before.
    generation = r.generation + excluded.live::integer,
    live = r.live or excluded.live,
    idle = not r.live,
    change = case when not excluded.live then r.change
                  when r.live and r.change = 'enter' and excluded.change = 'change'
                      and not exists (select from penstock.running_job u where u.id = r.id) then r.change
                  else excluded.change end,
    before = case when excluded.live then excluded.before else r.before end,
    after = case when excluded.live or excluded.gone is null then excluded.after else r.after end,
    concurrency_key = case when excluded.live then excluded.concurrency_key else r.concurrency_key end,
    place = case when excluded.live then excluded.place else r.place end,
    changed_at = case when excluded.live then excluded.changed_at else r.changed_at end,
    due_at = case when not excluded.live then r.due_at
                  when r.live and r.latest_at is not null and not {runs} then least(excluded.due_at, r.latest_at)
                  else excluded.due_at end,
    latest_at = case when not excluded.live then r.latest_at
                     when r.live and r.latest_at is not null and not {runs} then r.latest_at
                     else excluded.latest_at end,
    gone = excluded.gone,
    forget_at = case when excluded.gone is not null then coalesce(r.forget_at, excluded.forget_at) end,
    for_version = case when excluded.live then excluded.for_version else r.for_version end
where excluded.for_version = -1 or r.version < excluded.for_version

-- {runs}: whether a job runs for the last change of a record.
exists (select from penstock.running_job u where u.id = r.id and (u.args::jsonb ->> 'generation')::bigint = r.generation)

-- {later}: what a scheduled job is once its row has changed.
args = g.args, attempt = case when g.resets then 0 else j.attempt end, waiting = j.waiting and g.due_at <= :now,
run_at = case when j.waiting and g.due_at <= :now then j.run_at else g.due_at end,
rank = case when j.waiting and g.due_at <= :now then j.rank else g.rank end,
place = case when j.waiting and g.due_at <= :now then j.place else g.place end, blocks_key = false,
error = case when g.due_at <= :now then j.error else nullif(j.error, :held) end,
gated = j.gated or g.gate is not null,
concurrency_key = case when j.gated or g.gate is not null then coalesce(g.gate, '') else j.concurrency_key end

-- {declared}: what a job is that is to run as its task is declared now.
pool = g.pool, function = g.function, kind = g.kind, priority = g.priority,
rank = g.rank + case when j.blocks_key then 0 else (extract(epoch from j.run_at - g.due_at) * 1000000)::bigint end,
gated = g.gate is not null, concurrency_key = coalesce(g.gate, ''), place = g.place

-- {earlier}: the numbers of all interests that a task about one table has had.
-- SQLite: numbers are kept as JSON.
(
    select json_group_array(n.id) from (
        select e.value as id from json_each(penstock.task.earlier) e
        union select i.id from penstock.interest i where i.name = 'task:' || :name
    ) n
) else '[]'
-- PostgreSQL: numbers are kept as an array.
array(
    select unnest(earlier) union select i.id from penstock.interest i where i.name = 'task:' || :name
) else '{}'

-- add: make a task known, if none of its name is; all of its rows are to be looked at.
insert into penstock.task
    (name, function, kind, pool, priority, options, resets, history, version, signature, spec, declared_at, reconciling)
values (:name, :function, :kind, :pool, :priority, :options, :resets, :history, :version, :signature, :spec, :now, :reconciling)
on conflict (name) do nothing returning id;

-- declare: store the declaration of a task; one with a higher declared version stays as it is. The interests that
-- it has had are known by their numbers also when they are dropped, unless they were about another table.
update penstock.task set
    function = :function, kind = :kind, pool = :pool, priority = :priority, options = :options, resets = :resets,
    history = :history, version = :version, signature = :signature, spec = :spec, declared_at = :now,
    reconciling = coalesce(:reconciling, reconciling),
    earlier = case
        when (spec::jsonb -> 'table', spec::jsonb -> 'key') = (:spec::text::jsonb -> 'table', :spec::jsonb -> 'key')
        then {earlier} end
where name = :name and version <= :version;

-- redeclare: let the pending jobs of a task run as it is declared now: the function, in the pool, through the gate.
-- Ready ones are scheduled again. Keys that the gate of another declaration had are of no use: `unkeyed` says so.
-- Unbounded: it reads all pending jobs.
-- SQLite: there is no DELETE in WITH.
insert into penstock.scheduled_job ({job_columns}, attempt, enqueued_at, error, attempts)
select {job_columns}, attempt, enqueued_at, error, attempts
from penstock.ready_job where options ->> 'task' = :task and ending is null;
delete from penstock.ready_job where options ->> 'task' = :task and ending is null;
update penstock.scheduled_job as j
set pool = g.pool, function = g.function, kind = g.kind, priority = g.priority,
    rank = g.rank + iif(j.blocks_key, 0, penstock_microseconds(j.run_at) - penstock_microseconds(g.due_at)),
    gated = g.gate is not null and (not :unkeyed or g.gate = ''), waiting = 0,
    concurrency_key = iif(:unkeyed, '', coalesce(g.gate, '')), place = g.place
from penstock.task_job g
where j.options ->> 'task' = :task and g.task = :task and g.key = j.args ->> 'key' and g.id = j.id;
-- PostgreSQL: one statement for both places.
with ready as (
    delete from penstock.ready_job j
    where (j.options::jsonb ->> 'task')::integer = :task::integer and j.ending is null and exists (
        select from penstock.task_record r where r.task = :task and r.key = j.args::jsonb ->> 'key' and r.id = j.id
    )
    returning j.id, j.args, j.run_at, j.options, j.on_complete, j.attempt, j.enqueued_at, j.error, j.attempts
), moved as (
    insert into penstock.scheduled_job (id, pool, function, kind, args, priority, rank, gated, concurrency_key, place,
        run_at, options, on_complete, attempt, enqueued_at, error, attempts)
    select r.id, g.pool, g.function, g.kind, r.args, g.priority,
           g.rank + (extract(epoch from r.run_at - g.due_at) * 1000000)::bigint, f.gate is not null, coalesce(f.gate, ''),
           g.place, r.run_at, r.options, r.on_complete, r.attempt, r.enqueued_at, r.error, r.attempts
    from ready r
    cross join lateral (
        select * from penstock.task_job o where o.task = :task and o.key = r.args::jsonb ->> 'key' offset 0
    ) g
    cross join lateral (select case when not :unkeyed::boolean or g.gate = '' then g.gate end as gate) f
)
update penstock.scheduled_job j
set pool = g.pool, function = g.function, kind = g.kind, priority = g.priority,
    rank = g.rank + case when j.blocks_key then 0 else (extract(epoch from j.run_at - g.due_at) * 1000000)::bigint end,
    gated = f.gate is not null, waiting = false, concurrency_key = coalesce(f.gate, ''), place = g.place
from penstock.scheduled_job s
cross join lateral (
    select * from penstock.task_job o where o.task = :task and o.key = s.args::jsonb ->> 'key' offset 0
) g
cross join lateral (select case when not :unkeyed or g.gate = '' then g.gate end as gate) f
where (s.options::jsonb ->> 'task')::integer = :task and g.id = s.id and j.id = s.id;

-- unkey: rows of a task run in parallel until it is known which have the same key, as that is another column now, or
-- none. It locks the records in the order of their keys.
-- Unbounded: it reads all records of the task.
with held as (
    select task, key from penstock.task_record where task = :task::integer and concurrency_key is not null
    order by key for no key update
)
update penstock.task_record as r set concurrency_key = null from held h where r.task = h.task and r.key = h.key;

-- follow: jobs of rows that are to run again do so as their tasks are declared now, if that was while they ran.
-- SQLite: takes rows as JSON.
update penstock.scheduled_job as j
set {declared}
from json_each(:rows) k join penstock.task_job g on g.task = k.value ->> 0 and g.key = k.value ->> 1
where j.id = g.id and (j.pool, j.function, j.kind, j.priority) <> (g.pool, g.function, g.kind, g.priority);
-- PostgreSQL: the rows are arrays.
update penstock.scheduled_job j
set {declared}
from unnest(:tasks::integer[], :keys::text[]) as k (task, key)
cross join lateral (select * from penstock.task_job o where o.task = k.task and o.key = k.key offset 0) g
where j.id = g.id and (j.pool, j.function, j.kind, j.priority) <> (g.pool, g.function, g.kind, g.priority);

-- list: all tasks by name, with the numbers of their interests: all present ones, the declared one, and former
-- ones.
-- Unbounded: it reads them all.
select t.id, t.name, t.function, t.kind, t.pool, t.priority, t.options, t.resets, t.history, t.version, t.signature, t.spec,
       array(select i.id from penstock.interest i where i.name = 'task:' || t.name) as interests,
       t.declared_at, t.paused, t.held_until, t.reconciling, t.reconciled_at, t.begun, (
           select i.id from penstock.interest i
           where i.name = 'task:' || t.name and i.digest = t.spec::jsonb ->> 'interest'
       ) as interest, t.earlier
from penstock.task t order by t.name;

-- record: write the changes of rows, of each once; those to be run have one generation more. A row that is only gone is
-- written where there is a record. A row that has changed before its first run has still only entered. For how long a run
-- may be put off counts from the first change since the last one began. The records are locked in the order of their keys,
-- here and wherever they are. New records, which nobody else can know, have their jobs at once; the others are returned,
-- for launch.
-- SQLite: the rows are one parameter, as JSON, each spelled once, and not once for each of its columns.
with g as materialized (select value from json_each(:rows))
insert into penstock.task_record as r (task, key, id, generation, live, idle, change, before, after, concurrency_key,
    place, changed_at, due_at, latest_at, gone, forget_at, for_version)
select g.value ->> 0, g.value ->> 1, penstock_bytes(g.value ->> 2), 1, g.value ->> 3, g.value ->> 3, g.value ->> 4,
       g.value ->> 5, g.value ->> 6, g.value ->> 7, g.value ->> 8, g.value ->> 9, g.value ->> 10, g.value ->> 11,
       g.value ->> 12, g.value ->> 13, g.value ->> 14
from g
where g.value ->> 3 or exists (
    select 1 from penstock.task_record o where o.task = g.value ->> 0 and o.key = g.value ->> 1
)
on conflict (task, key) do update set {changed}
returning task, key, id, idle, live, generation;
-- PostgreSQL: one statement for any number of rows; common values are said of the first only.
with recorded as (
    insert into penstock.task_record as r (task, key, id, generation, live, idle, change, before, after, concurrency_key,
        place, changed_at, due_at, latest_at, gone, forget_at, for_version)
    select g.task, g.key, g.id, 1, g.runs, g.runs, g.change, g.before, g.after, g.partition, g.place, g.changed_at, g.due_at,
           g.latest_at, g.gone, g.forget_at, g.for_version
    from (
        select coalesce(n.task, (:tasks)[1]) as task, n.key, n.id, coalesce(n.runs, (:runs)[1]) as runs,
               coalesce(n.change, (:changes)[1]) as change, n.before, n.after, n.partition, n.place,
               coalesce(n.changed_at, (:changed_ats)[1]) as changed_at,
               coalesce(n.due_at, (:due_ats)[1]) as due_at, n.latest_at, n.gone, n.forget_at,
               coalesce(n.for_version, (:for_versions)[1]) as for_version
        from unnest(
            :tasks::integer[], :keys::text[], :ids::uuid[], :runs::boolean[], :changes::text[], :befores::text[], :afters::text[],
            :partitions::text[], :places::bigint[], :changed_ats::timestamptz[], :due_ats::timestamptz[],
            :latest_ats::timestamptz[], :gones::text[], :forget_ats::timestamptz[], :for_versions::integer[]
        ) as n (task, key, id, runs, change, before, after, partition, place, changed_at, due_at, latest_at, gone, forget_at, for_version)
    ) g
    where g.runs or (select true from penstock.task_record o where o.task = g.task and o.key = g.key limit 1)
    order by g.task, g.key collate "C"
    on conflict (task, key) do update set {changed}
    returning r.*
), task as materialized (
    select t.id, t.function, t.kind, t.pool, t.priority, t.options, p.ageing, case when p.rate_limit is not null then '' end as gate
    from penstock.task t left join penstock.pool p on p.name = t.pool
), new as materialized (
    select r.id, r.due_at, r.place, t.function, t.kind, t.pool, t.priority, t.options,
           penstock.task_args(r.generation, r.key, r.change, r.before, r.after, r.for_version) as args,
           penstock.task_rank(r.due_at, t.priority, t.ageing) as rank, coalesce(r.concurrency_key, t.gate) as gate
    from recorded r join task t on t.id = r.task where r.generation = 1 and r.idle and r.live
), due as (
    insert into penstock.ready_job ({task_job_columns}, attempt, enqueued_at)
    select id, pool, function, kind, args, priority, rank, due_at, options, 0, :now::timestamptz
    from new where due_at <= :now and gate is null order by rank
), later as (
    insert into penstock.scheduled_job ({task_job_columns}, attempt, enqueued_at, gated, waiting, concurrency_key, place)
    select id, pool, function, kind, args, priority, rank, due_at, options, 0, :now, gate is not null,
           gate is not null and due_at <= :now, coalesce(gate, ''), place
    from new where due_at > :now or gate is not null
)
select r.task, r.key, r.id, r.idle, r.live from recorded r where not (r.generation = 1 and r.idle and r.live);

-- postpone: jobs in ready whose rows are due later now, or have a key now, are scheduled again.
-- SQLite: part of launch.
insert into penstock.scheduled_job ({task_job_columns}, attempt, enqueued_at, error, attempts, gated)
select j.id, j.pool, j.function, j.kind, j.args, j.priority, j.rank, g.due_at, j.options, j.attempt, j.enqueued_at, j.error,
       j.attempts, g.gate is not null
from json_each(:rows) k join penstock.task_job g on g.task = k.value ->> 0 and g.key = k.value ->> 1
join penstock.ready_job j on j.id = g.id
where not k.value ->> 2 and (g.due_at > :now or g.gate is not null)
returning id;

-- postponed: take them out of ready.
-- SQLite: the other half of postpone.
delete from penstock.ready_job where id in (select penstock_bytes(value) from json_each(:ids));

-- informed: pending jobs get the later changes of their rows, and scheduled ones their new times.
-- Jobs that are due later now wait no more at their gate. A resume does not take them for ones that only the hold has
-- put off.
-- SQLite: part of launch.
update penstock.ready_job as j set args = g.args, attempt = case when g.resets then 0 else j.attempt end
from json_each(:rows) k join penstock.task_job g on g.task = k.value ->> 0 and g.key = k.value ->> 1
where not k.value ->> 2 and j.id = g.id;
update penstock.scheduled_job as j
set {later}
from json_each(:rows) k join penstock.task_job g on g.task = k.value ->> 0 and g.key = k.value ->> 1
where not k.value ->> 2 and j.id = g.id;

-- launch: see to it that there is a pending job for the last generation of some rows: a new one for idle rows. That of
-- the others gets the later changes, unless it runs, and so gets them at its end. One that was due and is due later
-- now, or has a key now, is scheduled again. A resume does not take it for one that only the hold has put off. Jobs
-- that a worker or a cancel has locked are skipped: it looks at the record when it is done. Requests to cancel that
-- came before the change are not about it, and are forgotten.
-- SQLite: takes rows as JSON, and makes those jobs only that are due later, or pass a gate.
insert into penstock.scheduled_job ({task_job_columns}, attempt, enqueued_at, attempts, gated, waiting, concurrency_key, place)
select j.id, j.pool, j.function, j.kind, j.args, j.priority, j.rank, j.due_at, j.options, 0, :now, j.attempts,
       j.gate is not null, j.gate is not null and j.due_at <= :now, coalesce(j.gate, ''), j.place
from json_each(:rows) k join penstock.task_job j on j.task = k.value ->> 0 and j.key = k.value ->> 1
where k.value ->> 2 and (j.due_at > :now or j.gate is not null);
-- PostgreSQL: one statement for any number of rows, each looked up by itself.
with given as materialized (
    select j.id, j.due_at, j.resets, j.args, j.rank, j.gate, j.place
    from unnest(:tasks::integer[], :keys::text[], :idles::boolean[]) as k (task, key, idle)
    cross join lateral (select * from penstock.task_job o where o.task = k.task and o.key = k.key offset 0) j
    where not k.idle
), ready as materialized (
    select q.id from penstock.ready_job q where q.id = any(array(select id from given)) for update skip locked
), informed as (
    update penstock.ready_job j set args = g.args, attempt = case when g.resets then 0 else j.attempt end
    from given g
    where j.id = g.id and j.id in (select id from ready) and g.due_at <= :now::timestamptz and g.gate is null
    returning j.id
), unready as (
    delete from penstock.ready_job j using given g
    where j.id = g.id and j.id in (select id from ready) and (g.due_at > :now or g.gate is not null)
    returning j.id, j.pool, j.function, j.kind, g.args, j.priority, g.rank, g.due_at, j.options,
              case when g.resets then 0 else j.attempt end as attempt, j.enqueued_at, nullif(j.error, :held::text) as error,
              j.attempts, g.gate, g.place
), postponed as (
    insert into penstock.scheduled_job ({task_job_columns}, attempt, enqueued_at, error, attempts, gated,
         concurrency_key, place)
    select id, pool, function, kind, args, priority, rank, due_at, options, attempt, enqueued_at, error, attempts,
           gate is not null, coalesce(gate, ''), place
    from unready
), put_off as (
    update penstock.scheduled_job j
    set {later}
    from given g
    where j.id = g.id and j.id in (
        select q.id from penstock.scheduled_job q where q.id = any(array(select id from given)) for update skip locked
    )
    returning j.id
), new as materialized (
    select j.* from unnest(:tasks, :keys, :idles) as k (task, key, idle)
    cross join lateral (select * from penstock.task_job o where o.task = k.task and o.key = k.key offset 0) j
    where k.idle
), forgotten as (
    delete from penstock.finished_job f where f.id = any(array(select id from new)) and f.day = -1
), kept as (
    delete from penstock.cancel_request c
    where c.job_id in (
        select id from new union all select id from informed union all select id from unready union all select id from put_off
    )
), due as (
    insert into penstock.ready_job ({task_job_columns}, attempt, enqueued_at, attempts)
    select id, pool, function, kind, args, priority, rank, due_at, options, 0, :now, attempts
    from new where due_at <= :now and gate is null order by rank
)
insert into penstock.scheduled_job ({task_job_columns}, attempt, enqueued_at, attempts, gated, waiting, concurrency_key, place)
select id, pool, function, kind, args, priority, rank, due_at, options, 0, :now, attempts, gate is not null,
       gate is not null and due_at <= :now, coalesce(gate, ''), place
from new where due_at > :now or gate is not null;

-- launch_due: the same for due ones.
-- SQLite: part of launch.
insert into penstock.ready_job ({task_job_columns}, attempt, enqueued_at, attempts)
select j.id, j.pool, j.function, j.kind, j.args, j.priority, j.rank, j.due_at, j.options, 0, :now, j.attempts
from json_each(:rows) k join penstock.task_job j on j.task = k.value ->> 0 and j.key = k.value ->> 1
where k.value ->> 2 and j.due_at <= :now and j.gate is null order by j.rank;

-- forgotten: the last ends of jobs that begin again are a part of their history.
-- SQLite: part of launch.
delete from penstock.finished_job where id in (
    select r.id from json_each(:rows) k
    join penstock.task_record r on r.task = k.value ->> 0 and r.key = k.value ->> 1 where k.value ->> 2
);

-- uncanceled: requests to cancel that came before a change are not about it, and are forgotten.
-- SQLite: part of launch.
delete from penstock.cancel_request where job_id in (
    select r.id from json_each(:rows) k
    join penstock.task_record r on r.task = k.value ->> 0 and r.key = k.value ->> 1
    where not exists (select 1 from penstock.running_job j where j.id = r.id)
);

-- pending: which of some jobs are pending. It locks them, and skips rows that other workers have locked.
with ready as (
    select j.id from penstock.ready_job j where j.id = any(:ids::uuid[]) for update skip locked
), scheduled as (
    select j.id from penstock.scheduled_job j where j.id = any(:ids::uuid[]) for update skip locked
)
select id from ready union all select id from scheduled;

-- ended: jobs of tasks have ended, or are to run again. For rows that have not changed since the jobs began, and whose
-- jobs have ended, there is none any more. For rows that are to run again, the time for which changes may put that off
-- starts again. Of the others those are returned that `launch` or `idle` has to do with.
-- SQLite: takes rows as JSON.
select r.task, r.key, g.value ->> 3 as idle
from json_each(:rows) g join penstock.task_record r on r.task = g.value ->> 0 and r.key = g.value ->> 1
where r.generation > g.value ->> 2 and not (
    g.value ->> 3 and r.generation = (g.value ->> 2) + 1 and r.for_version between 0 and g.value ->> 4
);
-- PostgreSQL: one statement for any number of rows, whose records are locked in the order of their keys. Each is looked up
-- by itself, as a plan that was made while there were few would read them all; what is alike in all is said of the first.
-- Rows that others have written while this one waited are left to `idle`.
with held as materialized (
    select r.task, r.key, g.finished, r.place, r.generation > g.generation and not (
               g.finished and r.generation = g.generation + 1 and r.for_version between 0 and :version::integer
           ) as changed
    from (
        select coalesce(t.task, (:tasks)[1]) as task, t.key, coalesce(t.generation, (:generations)[1]) as generation,
               coalesce(t.finished, (:finished)[1]) as finished
        from unnest(:tasks::integer[], :keys::text[], :generations::bigint[], :finished::boolean[]) as t (task, key, generation, finished)
        order by 1, t.key collate "C"
    ) g cross join lateral (
        select o.task, o.key, o.generation, o.for_version, o.ctid as place from penstock.task_record o
        where o.task = g.task and o.key = g.key for no key update of o
    ) r
), idled as (
    update penstock.task_record set live = false, version = greatest(version, :version)
    where ctid = any(array(select place from held where finished and not changed))
    returning id
), begun as (
    update penstock.task_record set latest_at = null
    where ctid = any(array(select place from held where not finished and not changed)) and latest_at is not null
)
select task, key, finished as idle, changed, place::text from held
where changed or (
    finished and (select count(*) from idled) < (select count(*) from held where finished and not changed)
);

-- idle: for rows whose jobs have ended, and which have not changed since, there is none any more.
-- SQLite: takes the same as `ended`, and does the other half of it.
update penstock.task_record as r
set live = case when g.value ->> 3 then 0 else r.live end, latest_at = case when g.value ->> 3 then r.latest_at end,
    version = max(r.version, g.value ->> 4)
from json_each(:rows) g
where r.task = g.value ->> 0 and r.key = g.value ->> 1 and (
    r.generation <= g.value ->> 2
    or (g.value ->> 3 and r.generation = (g.value ->> 2) + 1 and r.for_version between 0 and g.value ->> 4)
);
-- PostgreSQL: takes the places of records that are locked.
update penstock.task_record set live = false, version = greatest(version, :version)
where ctid = any(:places::text[]::tid[]);

-- find: the record of a row.
select task, key, id as job, generation, live, change, before, after, changed_at, due_at, gone
from penstock.task_record where task = :task and key = :key;

-- signature: filter and watch of a task as stored.
select signature from penstock.task where id = :task;

-- hold: let none of a task's jobs start until a time, or until a later one that was set before.
update penstock.task set held_until = greatest(coalesce(held_until, :until), :until::timestamptz) where id = :task;

-- held: the tasks that start no jobs now, with the times until which they do not.
-- Unbounded: it reads them all.
select id, paused, held_until from penstock.task where paused or held_until > :now;

-- pause: let none of a task's jobs start, or let them again.
update penstock.task set paused = :paused where name = :name returning id;

-- release: jobs of a task that were put off while it was held are due now; so many at a time.
update penstock.scheduled_job
set run_at = :now,
    rank = rank - case when blocks_key then 0 else (extract(epoch from run_at - :now::timestamptz) * 1000000)::bigint end
where id in (
    select s.id from penstock.scheduled_job s
    where not s.waiting and s.run_at > :now and s.error = :held and (s.options::jsonb ->> 'task')::integer = :task
    order by s.run_at, s.id limit :limit for update of s skip locked
)
returning id;

-- mark: mark a running job as completed; nothing if the lease does not hold this attempt of it any more.
update penstock.running_job set marked = true where id = :id and lease = :lease and started_at = :started_at;

-- marked: whether jobs under a lease are marked as completed; null for rows that a transaction has locked, which may be
-- about to mark them. It waits for none.
with free as materialized (
    select j.id, j.marked from penstock.running_job j where j.id = any(:ids::uuid[]) and j.lease = :lease for update skip locked
)
select j.id, f.marked from penstock.running_job j left join free f on f.id = j.id
where j.id = any(:ids::uuid[]) and j.lease = :lease;

-- failed: attempts of a task have failed at these times; the times of the last ones.
-- SQLite: times are kept as JSON.
update penstock.task set failures = (
    select json_group_array(f.at) from (
        select value as at from json_each(coalesce(failures, '[]'))
        union all select value from json_each(:times) order by 1 desc limit :most
    ) f
) where id = :task returning failures;
-- PostgreSQL:
update penstock.task set failures = array(
    select f.at from unnest(coalesce(failures, '{}') || :times::timestamptz[]) as f (at) order by f.at desc limit :most
) where id = :task returning failures;

-- open: let none of a task's jobs start until a time, and forget what failed; nothing if another one was quicker.
update penstock.task set held_until = greatest(coalesce(held_until, :until), :until::timestamptz), failures = null
where id = :task and failures is not null returning id;

-- generations: the generations of the records of rows of one task.
select key, generation from penstock.task_record where task = :task and key = any(:keys::text[]);

-- records: the records of some rows.
select key, after, gone from penstock.task_record where task = :task and key = any(:keys::text[]);

-- slice: the records of rows in the order of their keys, the ends of their jobs, and whether one runs for the last
-- change.
select r.key, r.after, r.gone, f.state,
       {runs} as running, r.change, r.before, r.version
from penstock.task_record r left join penstock.finished_job f on f.id = r.id and f.day = -1
where r.task = :task and r.key > :after::text order by r.key limit :limit;

-- progress: write the progress of a scan of a task's rows; NULL once it is done. Not if the task was declared again
-- meanwhile, or its scan was begun again.
update penstock.task
set reconciling = :reconciling, begun = begun + :begins::integer,
    reconciled_at = case when :reconciling::text is null then :now::timestamptz else reconciled_at end
where id = :task and begun = :begun and declared_at = :declared_at and version = :version and signature = :signature
returning id;

-- forget: forget the oldest expired records, and their jobs with them; their number.
-- SQLite: there is no DELETE in WITH.
delete from penstock.finished_job where id in (
    select id from penstock.task_record where forget_at <= :now and not live order by forget_at, task, key limit :limit
);
delete from penstock.task_record where (task, key) in (
    select task, key from penstock.task_record where forget_at <= :now and not live order by forget_at, task, key limit :limit
);
select changes();
-- PostgreSQL: skips locked ones.
with old as (
    delete from penstock.task_record r where (r.task, r.key) in (
        select o.task, o.key from penstock.task_record o
        where o.forget_at <= :now and not o.live order by o.forget_at limit :limit for update skip locked
    ) returning r.id
), ended as (
    delete from penstock.finished_job f where f.id = any(array(select id from old)) and f.day = -1
)
select count(*) from old;
