-- hold: let a job have a key of its pool, if no other one has it.
insert into penstock.job_key (pool, key, job_id, until_start) values (:pool, :key, :id, :until_start)
on conflict (pool, key) do nothing returning job_id;

-- holder: the job that has a key: whether only until it starts, and, if it is pending, since when.
select k.job_id, k.until_start, s.enqueued_at
from penstock.job_key k left join penstock.scheduled_job s on s.id = k.job_id and s.attempt = 0
where k.pool = :pool and k.key = :key;

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
where id = :id and attempt = 0 returning id;
