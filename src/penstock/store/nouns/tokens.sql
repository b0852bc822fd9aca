-- {job}: a running job.
{r.claimed_columns}, r.started_at, {r.failing_since}

-- report: write the progress of running jobs.
-- SQLite: one statement a job.
update penstock.running_job set progress = :progress where id = :id and lease = :lease;
-- PostgreSQL: one statement for any number of jobs; skips rows that a transaction of a user has locked.
update penstock.running_job r set progress = t.progress
from unnest(:id::uuid[], :progress::text[]) as t (id, progress)
where r.id = t.id and r.id in (
    select k.id from penstock.running_job k where k.id = any(:id) and k.lease = :lease for update skip locked
);

-- issue: remember the token of an attempt that runs under a lease; an attempt that was snoozed may have had one before.
insert into penstock.token (job_id, attempt, hash, deadline, kept_until)
select r.id, r.attempt, :hash, :deadline::timestamptz, :kept_until::timestamptz
from penstock.running_job r where r.id = :id and r.lease = :lease and r.attempt = :attempt and r.ending is null
on conflict (job_id, attempt) do update
set hash = excluded.hash, deadline = excluded.deadline, kept_until = excluded.kept_until, told = null
returning job_id;

-- void: void a token, unless it has been redeemed; its outcome.
update penstock.token set told = coalesce(told, 'expired') where job_id = :id and attempt = :attempt returning told;

-- hold: move jobs whose functions have returned from the lease of their worker to lease 0, and their slots with them,
-- unless their token is over.
-- SQLite: one job at a time, its slot first.
update penstock.slot set held = max(0, held - 1) where lease = :lease and pool = (
    select r.pool from penstock.running_job r join penstock.token t on t.job_id = r.id and t.attempt = r.attempt
    where r.id = :id and r.lease = :lease and r.attempt = :attempt and r.ending is null and t.told is null
);
insert into penstock.slot (pool, lease, held)
select r.pool, 0, 1 from penstock.running_job r where r.id = :id and changes() > 0
on conflict (pool, lease) do update set held = held + 1;
update penstock.running_job set lease = 0
where id = :id and lease = :lease and attempt = :attempt and ending is null
  and exists (select 1 from penstock.token t where t.job_id = id and t.attempt = :attempt and t.told is null)
returning id;
-- PostgreSQL: one statement for any number of jobs, and for their slots.
with held as (
    update penstock.running_job r set lease = 0 from unnest(:id::uuid[], :attempt::integer[]) as o (id, attempt)
    where r.id = o.id and r.lease = :lease and r.attempt = o.attempt and r.ending is null
      and exists (select from penstock.token t where t.job_id = r.id and t.attempt = r.attempt and t.told is null)
    returning r.id, r.pool
), moved as (
    select pool, count(*)::integer as number from held group by pool
), given as (
    update penstock.slot s set held = greatest(0, s.held - m.number) from moved m
    where s.pool = m.pool and s.lease = :lease returning s.pool, m.number
), taken as (
    insert into penstock.slot as s (pool, lease, held) select pool, 0, number from given order by pool
    on conflict (pool, lease) do update set held = s.held + excluded.held
)
select id from held;

-- known: the token of an attempt.
select hash, deadline, told from penstock.token where job_id = :id and attempt = :attempt for update;

-- lease_of: the lease under which an attempt runs, and its job.
select r.lease, {job}
from penstock.running_job r where r.id = :id and r.attempt = :attempt and r.ending is null for update;

-- tell: write the outcome of a token.
update penstock.token set told = :told, kept_until = :kept_until where job_id = :id and attempt = :attempt;

-- free_slot: give back the slot of a job that ran under lease 0.
update penstock.slot set held = greatest(0, held - 1) where pool = :pool and lease = 0;

-- overdue: jobs under lease 0 that nobody completed in time.
select {job}
from penstock.token t join penstock.running_job r on r.id = t.job_id and r.attempt = t.attempt
where t.told is null and t.deadline <= :now and r.lease = 0 order by t.deadline limit :limit for update of t skip locked;

-- canceled: jobs under lease 0 for which a request to cancel stands.
select {job}
from penstock.token t join penstock.running_job r on r.id = t.job_id and r.attempt = t.attempt
where t.told is null and r.lease = 0 and r.id in (select c.job_id from penstock.cancel_request c) limit :limit
for update of t skip locked;

-- prune: forget expired tokens, but for ones that jobs still wait for.
delete from penstock.token
where (job_id, attempt) in (
    select t.job_id, t.attempt from penstock.token t
    where t.kept_until <= :now
      and not exists (select from penstock.running_job r where r.id = t.job_id and r.attempt = t.attempt and r.lease = 0)
    order by t.kept_until limit :limit
);
