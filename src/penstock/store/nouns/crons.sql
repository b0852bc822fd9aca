-- {cron}: a cron with its last decided time.
c.name, c.schedule, c.catch_up, c.overlap, c.jitter, c.function, c.job, c.takes_planned_at, c.declared, c.paused,
c.last_at, c.next_at, c.job_id, c.planned_at

-- {overdue}: the crons of a program whose time has come.
from penstock.cron c where c.next_at <= :now::timestamptz and not c.paused and {mine}

-- {mine}: the crons of a program.
case when c.declared then c.name = any(:names::text[]) else c.function = any(:functions::text[]) end

-- {free}: the crons that do not wait for their run under way.
(c.overlap = 'skip' or c.job_id is null or not (
    exists (select from penstock.ready_job j where j.id = c.job_id)
    or exists (select from penstock.scheduled_job j where j.id = c.job_id)
    or exists (select from penstock.running_job j where j.id = c.job_id)
))

-- list: all crons by name, with the state of the last job of each.
-- Unbounded: it reads them all.
select {cron},
       coalesce(
           (select case when j.ending is null then 'pending' else 'completing' end from penstock.ready_job j where j.id = c.job_id),
           (select case when j.ending is null then 'pending' else 'completing' end from penstock.scheduled_job j where j.id = c.job_id),
           (select case when j.ending is null then 'running' else 'completing' end from penstock.running_job j where j.id = c.job_id),
           (select j.state from penstock.finished_job j where j.id = c.job_id and j.expires_at > :now limit 1)
       ) as state
from penstock.cron c order by c.name;

-- lock: one cron, held until the transaction ends.
select {cron} from penstock.cron c where c.name = :name for update;

-- create: add a cron, unless its name is taken.
insert into penstock.cron
    (name, schedule, catch_up, overlap, jitter, function, job, takes_planned_at, declared, paused, last_at, next_at)
values (:name, :schedule, :catch_up, :overlap, :jitter, :function, :job, :takes_planned_at, :declared, false, :last_at,
    :next_at)
on conflict (name) do nothing returning name;

-- plan: give a cron another plan.
update penstock.cron
set schedule = :schedule, catch_up = :catch_up, overlap = :overlap, jitter = :jitter, function = :function, job = :job,
    takes_planned_at = :takes_planned_at, declared = :declared, last_at = :last_at, next_at = :next_at
where name = :name;

-- move: write the last decided time of a cron.
update penstock.cron
set paused = :paused, last_at = :last_at, next_at = :next_at, job_id = :job_id, planned_at = :planned_at
where name = :name;

-- remove: forget a cron.
delete from penstock.cron where name = :name returning name;

-- look: whether a cron of a program is due and waits for nothing, whether one waits for its run, and when the next is
-- due.
select exists (select {overdue} and {free}) as due, exists (select {overdue}) as overdue, (
    select c.next_at from penstock.cron c where c.next_at > :now and not c.paused and {mine} order by c.next_at limit 1
) as next_at;

-- due: a program's crons that are due and wait for nothing, the earliest first. Crons that another scheduler holds are
-- left out.
select {cron}
{overdue} and {free}
order by c.next_at, c.name limit :limit for update of c skip locked;

-- under_way: those of some jobs that have not ended.
select id from penstock.ready_job where id = any(:ids::uuid[])
union all select id from penstock.scheduled_job where id = any(:ids::uuid[])
union all select id from penstock.running_job where id = any(:ids::uuid[]);
