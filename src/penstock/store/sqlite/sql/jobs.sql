-- enqueue: store a new job that is due in ready.
-- Differs: one statement a job and place; SQLite is in this process, so statements cost no round trip.
insert into penstock_ready_job (id, pool, function, kind, args, priority, run_at, retry, attempt, enqueued_at, error)
values (:id, :pool, :function, :kind, :args, :priority, :run_at, :retry, :attempt, :enqueued_at, :error);

-- enqueue_scheduled: store a new job that is due later (SQLite only: the second half of enqueue).
insert into penstock_scheduled_job (id, pool, function, kind, args, priority, run_at, retry, attempt, enqueued_at, error)
values (:id, :pool, :function, :kind, :args, :priority, :run_at, :retry, :attempt, :enqueued_at, :error);

-- request_cancel: ask that a job be canceled.
-- Differs: one statement a job.
insert into penstock_cancel_request (job_id, requested_at) values (:id, :now);

-- promote: move scheduled jobs that are due to ready, earliest first.
-- Differs: takes them out; enqueue puts them back in.
delete from penstock_scheduled_job
where id in (select id from penstock_scheduled_job where run_at <= :now order by run_at, id limit :limit)
returning id, pool, function, kind, args, priority, run_at, retry, attempt, enqueued_at, error;

-- any_ready: whether a pool has a ready job (SQLite only: looking takes no lock).
select 1 from penstock_ready_job where pool = :pool limit 1;

-- next_run_at: when the next scheduled job is due (SQLite only: part of claim).
select min(run_at) from penstock_scheduled_job;

-- claim: give ready jobs of a pool to a lease, the most urgent first.
-- Differs: takes them out; start puts them in.
delete from penstock_ready_job
where seq in (
    select r.seq from penstock_ready_job r
    where r.pool = :pool
      and not exists (select 1 from penstock_cancel_request c where c.job_id = r.id)
      and exists (select 1 from penstock_lease l where l.id = :lease)
    order by r.priority desc, r.seq limit :limit
)
returning id, function, kind, args, run_at, pool, priority, retry, attempt, enqueued_at, error, seq;

-- start: put a claimed job under its lease (SQLite only: the second half of claim).
insert into penstock_running_job
    (id, lease, function, kind, args, run_at, pool, priority, retry, attempt, enqueued_at, started_at, error)
values (:id, :lease, :function, :kind, :args, :run_at, :pool, :priority, :retry, :attempt, :enqueued_at, :started_at,
    :error);

-- settle: take a running job from its lease. The lease is the fence: a job it no longer holds is not returned.
-- Differs: takes it out; end or enqueue_scheduled puts it in.
delete from penstock_running_job where id = :id and lease = :lease
returning id, pool, function, kind, args, priority, retry, enqueued_at, started_at, error;

-- end: keep the status of a job that has ended (SQLite only: the second half of settle).
insert into penstock_finished_job (id, pool, function, kind, args, run_at, attempt, enqueued_at, started_at, finished_at,
    expires_at, state, result, error, traceback)
values (:id, :pool, :function, :kind, :args, :run_at, :attempt, :enqueued_at, :started_at, :finished_at, :expires_at,
    :state, :result, :error, :traceback);

-- cancel_pending: ids of pending jobs for which a request to cancel stands.
-- Differs: the moves are statements of their own.
select distinct c.job_id from penstock_cancel_request c
where exists (select 1 from penstock_ready_job j where j.id = c.job_id)
   or exists (select 1 from penstock_scheduled_job j where j.id = c.job_id)
limit :limit;

-- cancel_running: ids of running jobs for which a request to cancel stands (SQLite only: part of cancel_pending).
select distinct c.job_id from penstock_cancel_request c join penstock_running_job j on j.id = c.job_id;

-- any_old_request: whether requests are old (SQLite only: looking takes no lock).
select 1 from penstock_cancel_request where requested_at < :before limit 1;

-- take_ready: take a job out of ready (SQLite only: part of cancel_pending).
delete from penstock_ready_job where id = :id returning id, pool, function, kind, args, run_at, attempt, enqueued_at;

-- take_scheduled: take a job out of scheduled (SQLite only: part of cancel_pending).
delete from penstock_scheduled_job where id = :id returning id, pool, function, kind, args, run_at, attempt, enqueued_at;

-- clear_request: forget requests to cancel a job (SQLite only: part of cancel_pending).
delete from penstock_cancel_request where job_id = :id;

-- clear_old_requests: forget old requests for jobs that are nowhere (SQLite only: part of cancel_pending).
delete from penstock_cancel_request
where requested_at < :before
  and not exists (select 1 from penstock_ready_job j where j.id = job_id)
  and not exists (select 1 from penstock_scheduled_job j where j.id = job_id)
  and not exists (select 1 from penstock_running_job j where j.id = job_id);

-- find: one job, wherever it stands.
select id, function, args, 'pending' as state, attempt, run_at, enqueued_at, null as started_at, null as finished_at,
       null as result, error, null as traceback
from penstock_ready_job where id = :id
union all
select id, function, args, 'pending', attempt, run_at, enqueued_at, null, null, null, error, null
from penstock_scheduled_job where id = :id
union all
select id, function, args, 'running', attempt, run_at, enqueued_at, started_at, null, null, error, null
from penstock_running_job where id = :id
union all
select id, function, args, state, attempt, run_at, enqueued_at, started_at, finished_at, result, error, traceback
from penstock_finished_job where id = :id and expires_at > :now;

-- list: jobs in one state, or in all, newest first.
-- Unbounded: of a state that is rare it reads all that have ended.
select * from (
    select * from (select id, function, args, 'pending' as state, attempt, run_at, enqueued_at, null as started_at,
        null as finished_at, null as result, error, null as traceback
    from penstock_ready_job where coalesce(:state, 'pending') = 'pending' order by id desc limit :limit)
    union all
    select * from (select id, function, args, 'pending', attempt, run_at, enqueued_at, null, null, null, error, null
    from penstock_scheduled_job where coalesce(:state, 'pending') = 'pending' order by id desc limit :limit)
    union all
    select * from (select id, function, args, 'running', attempt, run_at, enqueued_at, started_at, null, null, error, null
    from penstock_running_job where coalesce(:state, 'running') = 'running' order by id desc limit :limit)
    union all
    select * from (select id, function, args, state, attempt, run_at, enqueued_at, started_at, finished_at, result, error, traceback
    from penstock_finished_job where coalesce(:state, 'success') in ('success', 'failed', 'canceled')
        and state = coalesce(:state, state) and +expires_at > :now order by id desc limit :limit)
) job order by id desc limit :limit;

-- count: how many jobs stand in each place.
-- Unbounded: it reads whole indexes.
select 'ready', count(*) from penstock_ready_job
union all select 'scheduled', count(*) from penstock_scheduled_job
union all select 'running', count(*) from penstock_running_job
union all select state, count(*) from penstock_finished_job where expires_at > :now group by state;

-- prune: forget finished jobs once their time is over.
delete from penstock_finished_job
where id in (select id from penstock_finished_job where expires_at <= :now order by expires_at limit :limit);
