-- list: all crons by name, with the state of the last job of each.
-- Unbounded: it reads them all.
select c.name, c.schedule, c.catch_up, c.overlap, c.jitter, c.function, c.job, c.takes_planned_at, c.declared, c.paused,
       c.last_at, c.next_at, c.job_id, c.planned_at,
       coalesce(
           (select case when j.ending is null then 'pending' else 'completing' end from penstock_ready_job j where j.id = c.job_id),
           (select case when j.ending is null then 'pending' else 'completing' end from penstock_scheduled_job j where j.id = c.job_id),
           (select case when j.ending is null then 'running' else 'completing' end from penstock_running_job j where j.id = c.job_id),
           (select j.state from penstock_finished_job j where j.id = c.job_id and j.expires_at > :now limit 1)
       ) as state
from penstock_cron c order by c.name;

-- lock: one cron, in a transaction that writes.
-- Differs: SQLite has one writer, and needs no lock.
select name, schedule, catch_up, overlap, jitter, function, job, takes_planned_at, declared, paused, last_at, next_at,
       job_id, planned_at
from penstock_cron where name = :name;

-- create: add a cron, unless its name is taken.
insert into penstock_cron
    (name, schedule, catch_up, overlap, jitter, function, job, takes_planned_at, declared, paused, last_at, next_at)
values (:name, :schedule, :catch_up, :overlap, :jitter, :function, :job, :takes_planned_at, :declared, 0, :last_at,
    :next_at)
on conflict (name) do nothing returning name;

-- plan: give a cron another plan.
update penstock_cron
set schedule = :schedule, catch_up = :catch_up, overlap = :overlap, jitter = :jitter, function = :function, job = :job,
    takes_planned_at = :takes_planned_at, declared = :declared, last_at = :last_at, next_at = :next_at
where name = :name;

-- move: write how far a cron has come.
update penstock_cron
set paused = :paused, last_at = :last_at, next_at = :next_at, job_id = :job_id, planned_at = :planned_at
where name = :name;

-- remove: forget a cron.
delete from penstock_cron where name = :name returning name;

-- look: whether one of a program's crons is due and waits for nothing, whether one waits for its run under way, and when
-- the next one is due.
select exists (
    select 1 from penstock_cron c
    where c.next_at <= :now and not c.paused
      and case when c.declared then c.name in (select value from json_each(:names))
          else c.function in (select value from json_each(:functions)) end
      and (c.overlap = 'skip' or c.job_id is null or not (
          exists (select 1 from penstock_ready_job j where j.id = c.job_id)
          or exists (select 1 from penstock_scheduled_job j where j.id = c.job_id)
          or exists (select 1 from penstock_running_job j where j.id = c.job_id)
      ))
), exists (
    select 1 from penstock_cron c
    where c.next_at <= :now and not c.paused
      and case when c.declared then c.name in (select value from json_each(:names))
          else c.function in (select value from json_each(:functions)) end
), (
    select c.next_at from penstock_cron c
    where c.next_at > :now and not c.paused
      and case when c.declared then c.name in (select value from json_each(:names))
          else c.function in (select value from json_each(:functions)) end
    order by c.next_at limit 1
);

-- due: a program's crons that are due and wait for nothing, the earliest first.
-- Differs: SQLite has one writer, and holds nothing.
select c.name, c.schedule, c.catch_up, c.overlap, c.jitter, c.function, c.job, c.takes_planned_at, c.declared, c.paused,
       c.last_at, c.next_at, c.job_id, c.planned_at
from penstock_cron c
where c.next_at <= :now and not c.paused
  and case when c.declared then c.name in (select value from json_each(:names))
          else c.function in (select value from json_each(:functions)) end
  and (c.overlap = 'skip' or c.job_id is null or not (
      exists (select 1 from penstock_ready_job j where j.id = c.job_id)
      or exists (select 1 from penstock_scheduled_job j where j.id = c.job_id)
      or exists (select 1 from penstock_running_job j where j.id = c.job_id)
  ))
order by c.next_at, c.name limit :limit;

-- under_way: whether a job has not ended.
-- Differs: one statement a job.
select 1 from penstock_ready_job where id = :id
union all select 1 from penstock_scheduled_job where id = :id
union all select 1 from penstock_running_job where id = :id;
