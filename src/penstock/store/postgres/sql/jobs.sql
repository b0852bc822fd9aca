-- enqueue: store new jobs: those due in ready, the others in scheduled.
-- Differs: one statement for any number of jobs.
with new as materialized (
    select * from unnest(
        :ids::uuid[], :pools::text[], :functions::text[], :kinds::text[], :args::text[], :priorities::smallint[],
        :run_ats::timestamptz[], :retries::text[]
    ) with ordinality as t (id, pool, function, kind, args, priority, run_at, retry, place)
), later as (
    insert into penstock.scheduled_job (id, pool, function, kind, args, priority, run_at, retry, attempt, enqueued_at)
    select id, pool, function, kind, args, priority, run_at, retry, 0, :now::timestamptz from new where run_at > :now
)
insert into penstock.ready_job (id, pool, function, kind, args, priority, run_at, retry, attempt, enqueued_at)
select id, pool, function, kind, args, priority, run_at, retry, 0, :now from new where run_at <= :now order by place;

-- request_cancel: ask that jobs be canceled.
insert into penstock.cancel_request (job_id, requested_at) select id, :now::timestamptz from unnest(:ids::uuid[]) as t (id);

-- promote: move scheduled jobs that are due to ready, earliest first.
-- Differs: SKIP LOCKED steps around other workers, and one statement does both halves.
with due as materialized (
    select id from penstock.scheduled_job where run_at <= :now order by run_at, id limit :limit for update skip locked
), moved as (
    delete from penstock.scheduled_job s using due where s.id = due.id
    returning s.id, s.pool, s.function, s.kind, s.args, s.priority, s.run_at, s.retry, s.attempt, s.enqueued_at, s.error
)
insert into penstock.ready_job (id, pool, function, kind, args, priority, run_at, retry, attempt, enqueued_at, error)
select id, pool, function, kind, args, priority, run_at, retry, attempt, enqueued_at, error from moved order by run_at, id;

-- claim: give ready jobs of a pool to a lease, the most urgent first; each row begins with the next scheduled time.
-- Differs: SKIP LOCKED steps around other workers, and one statement moves the rows and looks at the schedule.
with due as materialized (
    select r.id from penstock.ready_job r
    where r.pool = :pool
      and not exists (select from penstock.cancel_request c where c.job_id = r.id)
      and exists (select from penstock.lease l where l.id = :lease)
    order by r.priority desc, r.seq limit :limit for update of r skip locked
), taken as (
    delete from penstock.ready_job r using due where r.id = due.id
    returning r.id, r.pool, r.function, r.kind, r.args, r.priority, r.run_at, r.retry, r.attempt, r.enqueued_at, r.error, r.seq
), started as (
    insert into penstock.running_job
        (id, lease, pool, function, kind, args, priority, run_at, retry, attempt, enqueued_at, started_at, error)
    select id, :lease, pool, function, kind, args, priority, run_at, retry, attempt + 1, enqueued_at, :now::timestamptz, error
    from taken
)
select schedule.next_run_at, t.id, t.function, t.kind, t.args, t.run_at, t.pool, t.priority, t.retry, t.attempt + 1,
       t.enqueued_at, :now
from (select min(run_at) as next_run_at from penstock.scheduled_job) schedule left join taken t on true
order by t.priority desc, t.seq;

-- settle: write what became of running jobs. The lease is the fence: a job it no longer holds is not returned.
-- Differs: one statement for any number of jobs.
with outcome as materialized (
    select * from unnest(
        :ids::uuid[], :states::text[], :attempts::integer[], :run_ats::timestamptz[], :finished_ats::timestamptz[],
        :expires_ats::timestamptz[], :slots::smallint[], :results::text[], :errors::text[], :tracebacks::text[]
    ) as t (id, state, attempt, run_at, finished_at, expires_at, slot, result, error, traceback)
), gone as (
    delete from penstock.running_job r using outcome o where r.id = o.id and r.lease = :lease
    returning r.id, r.pool, r.function, r.kind, r.args, r.priority, r.retry, r.enqueued_at, r.started_at,
              o.state, o.attempt, o.run_at, o.finished_at, o.expires_at, o.slot, o.result, o.error, o.traceback,
              r.error as last_error
), ended as (
    insert into penstock.finished_job (slot, id, pool, function, kind, args, run_at, attempt, enqueued_at, started_at,
        finished_at, expires_at, state, result, error, traceback)
    select slot, id, pool, function, kind, args, run_at, attempt, enqueued_at, started_at, finished_at, expires_at,
           state, result, error, traceback
    from gone where state <> 'pending'
), again as (
    insert into penstock.scheduled_job (id, pool, function, kind, args, priority, run_at, retry, attempt, enqueued_at, error)
    select id, pool, function, kind, args, priority, run_at, retry, attempt, enqueued_at, coalesce(error, last_error)
    from gone where state = 'pending'
)
select id from gone;

-- cancel_pending: carry out requests to cancel pending jobs; the running jobs for which a request stands.
-- A request for a job that is nowhere is kept for a minute.
-- Differs: one statement does all of it.
with asked as materialized (
    select c.job_id as id from penstock.cancel_request c
    where exists (select from penstock.ready_job j where j.id = c.job_id)
       or exists (select from penstock.scheduled_job j where j.id = c.job_id)
    limit :limit
), ready as (
    delete from penstock.ready_job j using asked where j.id = asked.id
    returning j.id, j.pool, j.function, j.kind, j.args, j.run_at, j.attempt, j.enqueued_at
), scheduled as (
    delete from penstock.scheduled_job j using asked where j.id = asked.id
    returning j.id, j.pool, j.function, j.kind, j.args, j.run_at, j.attempt, j.enqueued_at
), gone as (
    select * from ready union all select * from scheduled
), ended as (
    insert into penstock.finished_job (slot, id, pool, function, kind, args, run_at, attempt, enqueued_at, finished_at,
        expires_at, state)
    select :slot, id, pool, function, kind, args, run_at, attempt, enqueued_at, :now::timestamptz, :expires_at, 'canceled' from gone
), cleared as (
    delete from penstock.cancel_request c
    where c.job_id in (select id from gone)
       or (c.requested_at < :now - interval '1 minute'
           and not exists (select from penstock.ready_job j where j.id = c.job_id)
           and not exists (select from penstock.scheduled_job j where j.id = c.job_id)
           and not exists (select from penstock.running_job j where j.id = c.job_id))
)
select distinct c.job_id from penstock.cancel_request c join penstock.running_job j on j.id = c.job_id;

-- find: one job, wherever it stands.
select id, function, args, 'pending' as state, attempt, run_at, enqueued_at, null::timestamptz as started_at,
       null::timestamptz as finished_at, null as result, error, null as traceback
from penstock.ready_job where id = :id
union all
select id, function, args, 'pending', attempt, run_at, enqueued_at, null, null, null, error, null
from penstock.scheduled_job where id = :id
union all
select id, function, args, 'running', attempt, run_at, enqueued_at, started_at, null, null, error, null
from penstock.running_job where id = :id
union all
select id, function, args, state, attempt, run_at, enqueued_at, started_at, finished_at, result, error, traceback
from penstock.finished_job where id = :id and expires_at > :now;

-- list: jobs in one state, or in all, newest first.
-- Unbounded: of a state that is rare it reads all that have ended.
select * from (
    (select id, function, args, 'pending' as state, attempt, run_at, enqueued_at, null::timestamptz as started_at,
        null::timestamptz as finished_at, null as result, error, null as traceback
    from penstock.ready_job where coalesce(:state, 'pending') = 'pending' order by id desc limit :limit)
    union all
    (select id, function, args, 'pending', attempt, run_at, enqueued_at, null, null, null, error, null
    from penstock.scheduled_job where coalesce(:state, 'pending') = 'pending' order by id desc limit :limit)
    union all
    (select id, function, args, 'running', attempt, run_at, enqueued_at, started_at, null, null, error, null
    from penstock.running_job where coalesce(:state, 'running') = 'running' order by id desc limit :limit)
    union all
    (select id, function, args, state, attempt, run_at, enqueued_at, started_at, finished_at, result, error, traceback
    from penstock.finished_job where coalesce(:state, 'success') in ('success', 'failed', 'canceled')
        and state = coalesce(:state, state) and expires_at > :now order by id desc limit :limit)
) job order by id desc limit :limit;

-- count_slot: how many finished jobs a partition holds (PostgreSQL only: SQLite deletes them one by one).
-- From :most on it is an estimate, since counting millions takes long.
select greatest(found.number, case when found.number >= :most then c.reltuples end)::bigint
from (select count(*) as number from (select from penstock.finished_job where slot = :slot limit :most) few) found
left join pg_class c on c.oid = to_regclass('penstock.finished_job_' || :slot);

-- count: how many jobs stand in each place.
-- Unbounded: it reads whole indexes.
select 'ready', count(*) from penstock.ready_job
union all select 'scheduled', count(*) from penstock.scheduled_job
union all select 'running', count(*) from penstock.running_job
union all select state, count(*) from penstock.finished_job where expires_at > :now group by state;

-- prune: forget finished jobs that stayed longer than the ring of partitions turns, once their time is over.
with old as materialized (
    select id from penstock.finished_job_long where expires_at <= :now order by expires_at limit :limit for update skip locked
)
delete from penstock.finished_job_long j using old where j.id = old.id;
