-- hold: let a job have a key of its pool, if no other one has it.
insert into penstock_job_key (pool, key, job_id, until_start) values (:pool, :key, :id, :until_start)
on conflict (pool, key) do nothing returning job_id;

-- holder: the job that has a key: whether only until it starts, and, if it is pending, since when.
select k.job_id, k.until_start, s.enqueued_at
from penstock_job_key k left join penstock_scheduled_job s on s.id = k.job_id and s.attempt = 0
where k.pool = :pool and k.key = :key;

-- lost: the job that has a key, if it is nowhere.
select k.job_id from penstock_job_key k
where k.pool = :pool and k.key = :key and k.job_id = :id
    and not exists (select 1 from penstock_scheduled_job j where j.id = k.job_id)
    and not exists (select 1 from penstock_running_job j where j.id = k.job_id)
    and not exists (select 1 from penstock_ready_job j where j.id = k.job_id);

-- free: take a key from the job that has it.
delete from penstock_job_key where pool = :pool and key = :key and job_id = :id returning job_id;

-- replace: put another job in the place of a pending one, which keeps its id.
update penstock_scheduled_job
set function = :function, kind = :kind, args = :args, priority = :priority, rank = :rank, run_at = :run_at,
    options = :options, on_complete = :on_complete, concurrency_key = :concurrency_key, waiting = :run_at <= :now
where id = :id and attempt = 0 returning id;
