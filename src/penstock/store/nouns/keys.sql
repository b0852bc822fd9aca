-- hold: let a job have a key of its pool, if no other one has it.
insert into penstock.job_key (pool, key, job_id, until_start) values (:pool, :key, :id, :until_start)
on conflict (pool, key) do nothing returning job_id;

-- holder: the job that has a key: whether only until it starts, and, if another one may come in its place, since when
-- it is pending. Also whether it is to be canceled before it starts, which frees the key.
select job_id, until_start, case when attempt = 0 and not canceled then enqueued_at end as enqueued_at,
       canceled and (until_start or on_complete is null) as canceled
from (
    select k.job_id, k.until_start, s.enqueued_at, s.attempt, s.on_complete, s.id is not null
        and exists (select from penstock.cancel_request c where c.job_id = s.id) as canceled
    from penstock.job_key k left join penstock.scheduled_job s on s.id = k.job_id and s.ending is null
    where k.pool = :pool and k.key = :key
) found;

-- lost: the job that has a key, if it is nowhere.
select k.job_id from penstock.job_key k
where k.pool = :pool and k.key = :key and k.job_id = :id
    and not exists (select from penstock.scheduled_job j where j.id = k.job_id)
    and not exists (select from penstock.running_job j where j.id = k.job_id)
    and not exists (select from penstock.ready_job j where j.id = k.job_id);

-- free: take a key from the job that has it.
delete from penstock.job_key where pool = :pool and key = :key and job_id = :id returning job_id;

-- replace: put another job in the place of a pending one, which keeps its id.
update penstock.scheduled_job
set function = :function, kind = :kind, args = :args, priority = :priority::smallint, rank = :rank::bigint,
    run_at = :run_at::timestamptz, options = :options::text, on_complete = :on_complete::text,
    concurrency_key = :concurrency_key::text, waiting = :run_at <= :now::timestamptz
where id = :id and attempt = 0 and ending is null
  and not exists (select from penstock.cancel_request c where c.job_id = :id)
returning id;

-- keep: let a job have its key only until it starts, or until it has ended.
update penstock.job_key set until_start = :until_start where job_id = :id;

-- take_over: give the key of a job to another one, if it is to be canceled and has not started.
-- SQLite: there is one writer.
update penstock.job_key set job_id = :id, until_start = :until_start
where pool = :pool and key = :key and job_id = :holder
  and exists (select 1 from penstock.scheduled_job s where s.id = :holder and s.ending is null)
  and exists (select 1 from penstock.cancel_request c where c.job_id = :holder)
returning job_id;
-- PostgreSQL: takes it from its gate, so that a claim that began before the cancel does not start it.
with canceled as (
    update penstock.scheduled_job s set waiting = false
    where s.id = :holder and s.ending is null
      and exists (select from penstock.cancel_request c where c.job_id = s.id)
    returning s.id
)
update penstock.job_key k set job_id = :id, until_start = :until_start from canceled
where k.pool = :pool and k.key = :key and k.job_id = canceled.id
returning k.job_id;
