-- records: records of tasks that meet a filter with how their jobs stand, by task and key, those after one.
-- Unbounded: of those that are rare it reads all.
-- Differs: several tasks and states are JSON.
select task, key, id, generation, live, change, changed_at, due_at, gone, state, attempt, run_at, started_at, finished_at, error
from penstock_task_state
where (task, key) > (:after_task, :after_key)
  and (:tasks is null or task in (select value from json_each(:tasks)))
  and (:states is null or state in (select value from json_each(:states))
       or (gone is not null and 'gone' in (select value from json_each(:states))))
  and (:error is null or instr(error, :error) > 0)
  and (:has_error is null or has_error = :has_error)
order by task, key limit :limit;

-- records_due: the same, those that are due first before others; those of which nobody knows a time come last.
-- Unbounded: it sorts all that meet the filter.
select task, key, id, generation, live, change, changed_at, due_at, gone, state, attempt, run_at, started_at, finished_at, error
from penstock_task_state
where (case when live then run_at else '~' end, task, key) > (coalesce(:after_due, '~'), :after_task, :after_key)
  and (:tasks is null or task in (select value from json_each(:tasks)))
  and (:states is null or state in (select value from json_each(:states))
       or (gone is not null and 'gone' in (select value from json_each(:states))))
  and (:error is null or instr(error, :error) > 0)
  and (:has_error is null or has_error = :has_error)
order by case when live then run_at else '~' end, task, key limit :limit;

-- records_of: the same of some rows only, in whatever order.
select r.task, r.key, r.id, r.generation, r.live, r.change, r.changed_at, r.due_at, r.gone, r.state, r.attempt, r.run_at, r.started_at,
       r.finished_at, r.error
from json_each(:keys) k cross join json_each(:tasks) t cross join penstock_task_state r
where r.task = t.value and r.key = k.value
  and (:states is null or r.state in (select value from json_each(:states))
       or (r.gone is not null and 'gone' in (select value from json_each(:states))))
  and (:error is null or instr(r.error, :error) > 0)
  and (:has_error is null or r.has_error = :has_error);

-- count_records: how many records meet a filter, by task and state, and how many of these are of rows that are gone.
-- Unbounded: it reads them all, and the ids of all their jobs.
select task, coalesce(state, 'lost'), count(*), count(gone)
from penstock_task_state
where (:tasks is null or task in (select value from json_each(:tasks)))
  and (:states is null or state in (select value from json_each(:states))
       or (gone is not null and 'gone' in (select value from json_each(:states))))
  and (:error is null or instr(error, :error) > 0)
  and (:has_error is null or has_error = :has_error)
group by task, coalesce(state, 'lost');

-- records_failed: the same as records, of those that have failed, which are few: it reads no others.
-- Unbounded: it reads all that have failed.
with failed as materialized (
    select distinct f.options ->> 'task' as task, f.args ->> 'key' as key
    from penstock_finished_job f
    where f.state = 'failed' and f.options ->> 'task' is not null
      and (:tasks is null or f.options ->> 'task' in (select value from json_each(:tasks)))
)
select r.task, r.key, r.id, r.generation, r.live, r.change, r.changed_at, r.due_at, r.gone, r.state, r.attempt, r.run_at, r.started_at,
       r.finished_at, r.error
from failed x cross join penstock_task_state r
where r.task = x.task and r.key = x.key and r.state = 'failed' and (r.task, r.key) > (:after_task, :after_key) and (:error is null or instr(r.error, :error) > 0)
  and (:has_error is null or r.has_error = :has_error)
order by r.task, r.key limit :limit;

-- count_failed: the same as count_records, of those that have failed.
-- Unbounded: it reads all that have failed.
with failed as materialized (
    select distinct f.options ->> 'task' as task, f.args ->> 'key' as key
    from penstock_finished_job f
    where f.state = 'failed' and f.options ->> 'task' is not null
      and (:tasks is null or f.options ->> 'task' in (select value from json_each(:tasks)))
)
select r.task, r.state, count(*), count(r.gone)
from failed x cross join penstock_task_state r
where r.task = x.task and r.key = x.key and r.state = 'failed' and (:error is null or instr(r.error, :error) > 0) and (:has_error is null or r.has_error = :has_error)
group by r.task, r.state;

-- backlog: of each task, how many jobs may start, start later, run and have failed; since when the oldest of the first is
-- due, and since when the oldest of the first two was due at first, before it failed or was put off; and when all rows were
-- looked at. Of what may start, of what starts later and of what has failed it counts only so many.
-- Unbounded: it counts jobs.
with few (task, place, run_at, key) as materialized (
    select * from (
        select r.options ->> 'task', 'ready', r.run_at,
               case when r.error is not null and r.options ->> 'task' is not null then r.args ->> 'key' end
        from penstock_ready_job r
        where r.pool in (select t.pool from penstock_task t) and r.ending is null limit :most
    )
    union all
    select * from (
        select w.options ->> 'task', 'ready', w.run_at,
               case when w.error is not null and w.options ->> 'task' is not null then w.args ->> 'key' end
        from penstock_scheduled_job w
        where w.pool in (select t.pool from penstock_task t) and w.waiting limit :most
    )
    union all
    select * from (
        select s.options ->> 'task', 'scheduled', s.run_at,
               case when s.error is not null and s.options ->> 'task' is not null then s.args ->> 'key' end
        from penstock_scheduled_job s where not s.waiting order by s.run_at, s.id limit :most
    )
    union all
    select u.options ->> 'task', 'running', u.run_at, null from penstock_running_job u
), counted as (
    select f.task, count(*) filter (where f.place = 'ready') as ready, count(*) filter (where f.place = 'scheduled') as scheduled,
           count(*) filter (where f.place = 'running') as running, min(f.run_at) filter (where f.place = 'ready') as oldest,
           min(coalesce(
               (select r.due_at from penstock_task_record r where r.task = f.task and r.key = f.key and f.key is not null),
               f.run_at
           )) filter (where f.place <> 'running') as due_first
    from few f group by f.task
)
select t.id, t.name, coalesce(c.ready, 0), coalesce(c.scheduled, 0), coalesce(c.running, 0), (
           select count(*) from (
               select 1 from penstock_finished_job f
               where f.state = 'failed' and f.options ->> 'task' is not null and f.options ->> 'task' = t.id limit :most
           )
       ), c.oldest, t.paused, c.due_first, t.reconciled_at
from penstock_task t left join counted c on c.task = t.id
order by t.name;

-- ahead: of what has the concurrency key of a job that waits at the gate of its pool, the job that runs, or that waits for
-- its next attempt, or is the first to start before it; with its task and row, if it is of a task. Those that are due and
-- are not let wait yet are in line all the same.
with mine as materialized (
    select m.id, m.pool, m.concurrency_key as key, m.rank, m.place, m.keeps_turn and not m.waiting and m.run_at > :now as turn
    from penstock_scheduled_job m where m.id = :id and m.gated and m.concurrency_key <> ''
), ahead (id, options, args, rank, place, stands) as (
    select * from (
        select u.id, u.options, u.args, 0, 0, 2 from mine cross join penstock_running_job u
        where u.gated and u.pool = mine.pool and u.concurrency_key = mine.key and u.ending is null limit 1
    )
    union all
    select * from (
        select k.id, k.options, k.args, 0, 0, 1 from mine cross join penstock_scheduled_job k
        where k.keeps_turn and not k.waiting and k.run_at > :now and k.pool = mine.pool and k.concurrency_key = mine.key
          and k.id <> mine.id
        limit 1
    )
    union all
    select * from (
        select s.id, s.options, s.args, s.rank, s.place, 0 from mine cross join penstock_scheduled_job s
        where s.waiting and not mine.turn and s.pool = mine.pool and s.concurrency_key = mine.key
          and (s.rank, s.place, s.id) < (mine.rank, mine.place, mine.id)
        order by s.rank, s.place, s.id limit 1
    )
    union all
    select * from (
        select e.id, e.options, e.args, e.rank, e.place, 0 from mine cross join penstock_scheduled_job e
        where e.gated and not e.waiting and e.concurrency_key <> '' and e.run_at <= :now and not mine.turn
          and e.pool = mine.pool and e.concurrency_key = mine.key
          and (e.rank, e.place, e.id) < (mine.rank, mine.place, mine.id)
        order by e.rank, e.place, e.id limit 1
    )
)
select id, stands, options ->> 'task', case when options ->> 'task' is not null then args ->> 'key' end
from ahead order by stands desc, rank, place, id limit 1;

-- asked: whether somebody has asked for a job to be canceled, and nobody has carried that out.
select exists (select 1 from penstock_cancel_request where job_id = :id);

-- held_records: how the jobs stand of records that are held.
-- Differs: takes rows as JSON; there is one writer, who holds them all.
select r.task, r.key, r.id, r.live, r.state
from json_each(:rows) g cross join penstock_task_state r
where r.task = g.value ->> 0 and r.key = g.value ->> 1
order by r.task, r.key;

-- rerun: records that are held have one generation more, which is due now. What has to be done about a row that has left or
-- is gone is done again as such.
-- Differs: takes rows as JSON.
update penstock_task_record as r set
    generation = r.generation + 1, idle = not r.live, live = 1, due_at = :now, latest_at = :now,
    change = case when r.change in ('leave', 'delete') then r.change else 'manual' end, for_version = -1
from json_each(:rows) g
where r.task = g.value ->> 0 and r.key = g.value ->> 1
returning task, key, idle;

-- forgive: forget requests to cancel jobs, but for those that run.
-- Differs: ids are JSON.
delete from penstock_cancel_request
where job_id in (select penstock_bytes(value) from json_each(:ids))
  and not exists (select 1 from penstock_running_job u where u.id = job_id);

-- forget: forget records that are held, if there is no job any more, with what is kept of their last ones.
-- Differs: takes rows as JSON; forget_ends is the other half.
delete from penstock_task_record
where (task, key) in (select g.value ->> 0, g.value ->> 1 from json_each(:rows) g) and not live
returning task, key, id;

-- forget_ends: forget what is kept of jobs that have ended (SQLite only: the other half of forget).
delete from penstock_finished_job where id in (select penstock_bytes(value) from json_each(:ids));

-- of_tasks: of some jobs that have failed or were canceled those of tasks, with their rows.
-- Differs: ids are JSON.
select f.id, f.options ->> 'task', f.args ->> 'key'
from penstock_finished_job f
where f.id in (select penstock_bytes(value) from json_each(:ids)) and f.state in ('failed', 'canceled')
  and f.options ->> 'task' is not null;
