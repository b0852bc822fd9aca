-- {record}: a record as it is listed.
r.task, r.key, r.id as job, r.generation, r.live, r.change, r.changed_at, r.due_at, r.gone, r.state, r.attempt, r.run_at,
r.started_at, r.finished_at, r.error

-- {filter}: the records that a filter means, tasks aside.
(:states::text[] is null or r.state = any(:states) or (r.gone is not null and 'gone' = any(:states))) and {errors}

-- {errors}: those of them whose errors it means.
(:error::text is null or strpos(r.error, :error) > 0) and (:has_error::boolean is null or r.has_error = :has_error)

-- {failed}: the records whose jobs have failed, which are few. It begins with these jobs.
-- SQLite: whatever has ended is in one table.
select r.task, r.key, r.gone, f.state, f.error, {has_error} as has_error
from penstock.finished_job f cross join penstock.task_record r
where f.state = 'failed' and f.options ->> 'task' is not null
  and (:tasks is null or f.options ->> 'task' in (select value from json_each(:tasks)))
  and r.task = f.options ->> 'task' and r.key = f.args ->> 'key' and r.id = f.id
-- PostgreSQL: what is kept for long is in a part of its own, and its index is of text.
{first} (select id, state, options, args, error from penstock.finished_job_long where state = 'failed') j {then}

-- {erring}: the records whose jobs have an error that contains a text.
-- SQLite: many jobs have ended, so it looks up those of the records, in order. Others it reads, as few of them have an error.
select r.task, r.key, r.gone, f.state, f.error, {has_error} as has_error
from (
    select id, 'pending' as state, options, args, error from penstock.ready_job where strpos(error, :error) > 0
    union all
    select id, 'pending', options, args, error from penstock.scheduled_job where strpos(error, :error) > 0
    union all
    select id, 'running', options, args, error from penstock.running_job where strpos(error, :error) > 0
) f cross join penstock.task_record r
where r.task = f.options ->> 'task' and r.key = f.args ->> 'key' and r.id = f.id
union all
select r.task, r.key, r.gone, f.state, f.error, {has_error} as has_error
from penstock.task_record r cross join penstock.finished_job f
where f.id = r.id and strpos(f.error, :error) > 0
-- PostgreSQL: it begins with the jobs.
{first} (
    select id, 'pending' as state, options, args, error from penstock.ready_job
    union all select id, 'pending', options, args, error from penstock.scheduled_job
    union all select id, 'running', options, args, error from penstock.running_job
    union all select id, state, options, args, error from penstock.finished_job_long
) j {then}

-- {first}: records of some jobs. Each is looked up by itself, in the order of keys, so that a limit ends this.
-- PostgreSQL: `json` reads a short text sooner than `jsonb`.
select f.task, f.key, r.gone, f.state, f.error, {has_error} as has_error
from (
    select (j.options::json ->> 'task')::integer as task, (j.args::json ->> 'key') collate "C" as key, j.id, j.state, j.error from

-- {then}: those of tasks, and with an error.
where j.options::jsonb ->> 'task' = any(coalesce(:tasks::integer[], array(select t.id from penstock.task t))::text[])
      and (:error::text is null or strpos(j.error, :error) > 0)
    order by 1, 2 offset 0
) f cross join lateral (
    select s.gone from penstock.task_record s where s.task = f.task and s.key = f.key and s.id = f.id offset 0
) r

-- {has_error}: as the view says it.
f.error is not null and f.error not like 'The task is held%' and f.error not like 'Deferred by its handler%'

-- {due}: jobs of pools with tasks that may start now.
-- SQLite: there is no lateral join, so it counts over all pools.
select * from (
    select 'ready', {of_task} from penstock.ready_job j
    where j.pool in (select t.pool from penstock.task t) and j.ending is null limit :most
)
union all
select * from (
    select 'ready', {of_task} from penstock.scheduled_job j
    where j.pool in (select t.pool from penstock.task t) and j.waiting limit :most
)
-- PostgreSQL: of each pool it counts only so many.
select 'ready', {of_task} from (select distinct t.pool from penstock.task t) p cross join lateral (
    select r.options, r.run_at, r.error, r.args from penstock.ready_job r where r.pool = p.pool and r.ending is null
    order by r.rank, r.seq limit :most
) j
union all
select 'ready', {of_task} from (select distinct t.pool from penstock.task t) p cross join lateral (
    select w.options, w.run_at, w.error, w.args from penstock.scheduled_job w where w.pool = p.pool and w.waiting
    order by w.concurrency_key, w.rank, w.place, w.id limit :most
) j

-- {of_task}: the task of a job, its time, and the key of its row if it has failed or was put off.
(j.options::jsonb ->> 'task')::integer, j.run_at,
case when j.error is not null and j.options::jsonb ->> 'task' is not null then j.args::jsonb ->> 'key' end

-- {counted}: of each task, how many of its jobs stand where, and since when the first of them.
select f.task, count(*) filter (where f.place = 'ready') as ready, count(*) filter (where f.place = 'scheduled') as scheduled,
       count(*) filter (where f.place = 'running') as running, min(f.run_at) filter (where f.place = 'ready') as oldest,
       min(coalesce(
           (select r.due_at from penstock.task_record r where r.task = f.task and r.key = f.key and f.key is not null), f.run_at
       )) filter (where f.place <> 'running') as due_first
from few f group by f.task

-- records: records of tasks that meet a filter with how their jobs stand, by task and key, those after one.
-- Unbounded: it reads all rare ones.
select {record}
from penstock.task_state r
where (task, key) > (:after_task::integer, :after_key::text)
  and (:tasks::integer[] is null or task = any(:tasks)) and {filter}
order by task, key limit :limit;

-- records_near: the same, of the next so many records only.
select {record}
from (
    select k.task, k.key from penstock.task_record k
    where (k.task, k.key) > (:after_task::integer, :after_key::text) and (:tasks::integer[] is null or k.task = any(:tasks))
    order by k.task, k.key limit :near
) k cross join penstock.task_state r
where r.task = k.task and r.key = k.key and {filter}
order by r.task, r.key limit :limit;

-- records_due: the same as records, the first due first; records without a known time come last.
-- Unbounded: it sorts all that meet the filter.
select {record}
from penstock.task_state r
where (case when live then run_at else 'infinity' end, task, key)
      > (coalesce(:after_due::timestamptz, 'infinity'), :after_task::integer, :after_key::text)
  and (:tasks::integer[] is null or task = any(:tasks)) and {filter}
order by case when live then run_at else 'infinity' end, task, key limit :limit;

-- records_of: the same of some rows only, in whatever order.
select {record}
from unnest(:keys::text[]) k (key) cross join unnest(:tasks::integer[]) t (task)
cross join penstock.task_state r
where r.task = t.task and r.key = k.key
  and {filter};

-- count_records: how many records meet a filter, by task and state, and how many of these are of rows that are gone.
-- Unbounded: it reads them all, and the ids of all their jobs.
select task, coalesce(state, 'lost') as state, count(*) as number, count(gone) as gone
from penstock.task_state r
where (:tasks::integer[] is null or task = any(:tasks)) and {filter}
group by task, coalesce(state, 'lost');

-- records_failed: the same as records, of the failed ones, which are few: it reads no others.
-- Unbounded: it reads all that have failed.
with few as materialized (
    select r.task, r.key from ({failed}) r
    where (r.task, r.key) > (:after_task::integer, :after_key::text) and {errors}
    order by r.task, r.key limit :limit
)
select {record}
from few cross join penstock.task_state r
where r.task = few.task and r.key = few.key
order by r.task, r.key;

-- count_failed: the same as count_records, of the failed ones.
-- Unbounded: it reads all that have failed.
select r.task, 'failed' as state, count(*) as number, count(r.gone) as gone from ({failed}) r where {errors} group by r.task;

-- records_erring: the same as records, of the ones whose error contains a text.
-- Unbounded: it reads all that have an error.
with few as materialized (
    select r.task, r.key from ({erring}) r
    where (r.task, r.key) > (:after_task::integer, :after_key::text)
      and (:tasks::integer[] is null or r.task = any(:tasks)) and {filter}
    order by r.task, r.key limit :limit
)
select {record}
from few cross join penstock.task_state r
where r.task = few.task and r.key = few.key
order by r.task, r.key;

-- count_erring: the same as count_records, of those.
-- Unbounded: it reads all that have an error.
select r.task, r.state, count(*) as number, count(r.gone) as gone from ({erring}) r
where (:tasks::integer[] is null or r.task = any(:tasks)) and {filter} group by r.task, r.state;

-- backlog: of each task, how many jobs may start, start later, run and have failed; since when the oldest of the first
-- is due. Also since when the oldest of the first two was first due, before it failed or was put off, and when all rows
-- were looked at. Of ready, of scheduled and of failed jobs it counts only so many.
-- Unbounded: it counts jobs.
with few (place, task, run_at, key) as materialized (
    {due}
    union all
    select 'scheduled', {of_task} from (
        select s.options, s.run_at, s.error, s.args from penstock.scheduled_job s
        where not s.waiting order by s.run_at, s.id limit :most
    ) j
    union all
    select 'running', (u.options::jsonb ->> 'task')::integer, u.run_at, null from penstock.running_job u
), counted as ({counted})
select t.id as task, t.name, coalesce(c.ready, 0) as ready, coalesce(c.scheduled, 0) as scheduled,
       coalesce(c.running, 0) as running, (
           select count(*) from (
               select from penstock.finished_job_long f
               where f.state = 'failed' and f.options::jsonb ->> 'task' is not null
                 and f.options::jsonb ->> 'task' = t.id::text limit :most
           ) failed
       ) as failed, c.oldest, t.paused, c.due_first, t.reconciled_at
from penstock.task t left join counted c on c.task = t.id
order by t.name;

-- hold_records: hold the records of some rows, in the order of their keys, before anything is done about their jobs.
-- PostgreSQL: where there is one writer, nothing is to be held.
select r.task, r.key from penstock.task_record r
join unnest(:tasks::integer[], :keys::text[]) as g (task, key) on g.task = r.task and g.key = r.key
order by r.task, r.key for no key update of r;

-- ahead: for a job that waits at its pool's gate, the job with its concurrency key that runs, waits for its next
-- attempt, or starts first. It comes with its task and row, if it is of a task. Due jobs that are not let wait yet are
-- in line all the same. Subqueries of one value let the index give the first job, which a join with them does not.
with mine as materialized (
    select m.id, m.pool, m.concurrency_key as key, m.rank, m.place,
           m.blocks_key and not m.waiting and m.run_at > :now::timestamptz as turn
    from penstock.scheduled_job m where m.id = :id::uuid and m.gated and m.concurrency_key <> ''
), ahead (id, options, args, rank, place, stands) as (
    select * from (
        select u.id, u.options, u.args, 0::bigint, 0::bigint, 2 from penstock.running_job u
        where u.gated and u.pool = (select pool from mine) and u.concurrency_key = (select key from mine) and u.ending is null
        limit 1
    ) running
    union all
    select * from (
        select k.id, k.options, k.args, 0, 0, 1 from penstock.scheduled_job k
        where k.blocks_key and not k.waiting and k.run_at > :now and k.pool = (select pool from mine)
          and k.concurrency_key = (select key from mine) and k.id <> (select id from mine)
        limit 1
    ) trying
    union all
    select * from (
        select s.id, s.options, s.args, s.rank, s.place, 0 from penstock.scheduled_job s
        where s.waiting and not (select turn from mine) and s.pool = (select pool from mine)
          and s.concurrency_key = (select key from mine)
          and (s.rank, s.place, s.id) < ((select rank from mine), (select place from mine), (select id from mine))
        order by s.rank, s.place, s.id limit 1
    ) waiting
    union all
    select * from (
        select e.id, e.options, e.args, e.rank, e.place, 0 from penstock.scheduled_job e
        where e.gated and not e.waiting and e.concurrency_key <> '' and e.run_at <= :now and not (select turn from mine)
          and e.pool = (select pool from mine) and e.concurrency_key = (select key from mine)
          and (e.rank, e.place, e.id) < ((select rank from mine), (select place from mine), (select id from mine))
        order by e.rank, e.place, e.id limit 1
    ) due
)
select id as job, stands, (options::jsonb ->> 'task')::integer as task,
       case when options::jsonb ->> 'task' is not null then args::jsonb ->> 'key' end as key
from ahead order by stands desc, rank, place, id limit 1;

-- asked: whether somebody has asked for a job to be canceled, and nobody has carried that out.
select exists (select from penstock.cancel_request where job_id = :id::uuid);

-- held_records: the states of the jobs of locked records.
select r.task, r.key, r.id, r.live, r.state
from unnest(:tasks::integer[], :keys::text[]) as g (task, key) cross join penstock.task_state r
where r.task = g.task and r.key = g.key
order by r.task, r.key;

-- rerun: locked records have one generation more, which is due now. The run of a row that has left or
-- is gone is repeated as such.
update penstock.task_record as r set
    generation = r.generation + 1, idle = not r.live, live = true, due_at = :now, latest_at = :now,
    change = case when r.change in ('leave', 'delete') then r.change else 'manual' end, for_version = -1
from unnest(:tasks::integer[], :keys::text[]) as g (of_task, of_key)
where r.task = g.of_task and r.key = g.of_key
returning task, key, idle;

-- forgive: forget requests to cancel jobs, but for running ones.
-- SQLite: there is one writer.
delete from penstock.cancel_request
where job_id in (select penstock_bytes(value) from json_each(:ids))
  and not exists (select 1 from penstock.running_job u where u.id = job_id);
-- PostgreSQL: skips jobs that workers have locked, which wait for the records.
delete from penstock.cancel_request c where c.ctid in (
    select r.ctid from penstock.cancel_request r
    where r.job_id = any(:ids::uuid[]) and not exists (select from penstock.running_job u where u.id = r.job_id)
    for update skip locked
);

-- forget: forget records that are held, if there is no job any more, with what is kept of their last ones.
-- SQLite: takes rows as JSON; there is no DELETE in WITH.
delete from penstock.finished_job where id in (
    select r.id from json_each(:rows) g join penstock.task_record r on r.task = g.value ->> 0 and r.key = g.value ->> 1
    where not r.live
);
delete from penstock.task_record
where (task, key) in (select g.value ->> 0, g.value ->> 1 from json_each(:rows) g) and not live
returning task, key;
-- PostgreSQL: takes rows as two arrays, and does both halves.
with gone as (
    delete from penstock.task_record r using unnest(:tasks::integer[], :keys::text[]) as g (task, key)
    where r.task = g.task and r.key = g.key and not r.live
    returning r.task, r.key, r.id
), ended as (
    delete from penstock.finished_job f where f.id = any(array(select id from gone)) and f.day = -1
)
select task, key from gone;

-- of_tasks: of some jobs that have failed or were canceled those of tasks, with their rows.
select f.id, (f.options::jsonb ->> 'task')::integer as task, f.args::jsonb ->> 'key' as key
from penstock.finished_job f
where f.id = any(:ids::uuid[]) and f.day = -1 and f.state in ('failed', 'canceled') and f.options::jsonb ->> 'task' is not null;
