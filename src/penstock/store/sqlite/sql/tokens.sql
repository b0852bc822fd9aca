-- report: write how far a running job has come.
-- Differs: one statement a job.
update penstock_running_job set progress = :progress where id = :id and lease = :lease;

-- issue: remember the token of an attempt that runs under a lease; an attempt that was snoozed may have had one before.
insert into penstock_token (job_id, attempt, hash, deadline, kept_until)
select r.id, r.attempt, :hash, :deadline, :kept_until
from penstock_running_job r where r.id = :id and r.lease = :lease and r.attempt = :attempt and r.ending is null
on conflict (job_id, attempt) do update
set hash = excluded.hash, deadline = excluded.deadline, kept_until = excluded.kept_until, told = null
returning job_id;

-- void: let a token count no more, unless it has been brought: what came of it.
update penstock_token set told = coalesce(told, 'expired') where job_id = :id and attempt = :attempt returning told;

-- hold: move a job whose function has returned from the lease of its worker to lease 0, unless its token is over.
-- Differs: one statement a job; its slot follows by give and take_slot.
update penstock_running_job set lease = 0
where id = :id and lease = :lease and attempt = :attempt and ending is null
  and exists (select 1 from penstock_token t where t.job_id = id and t.attempt = :attempt and t.told is null)
returning pool;

-- give: take the slot of such a job from its worker (SQLite only: part of hold).
update penstock_slot set held = max(0, held - 1) where pool = :pool and lease = :lease returning pool;

-- take_slot: give that slot to lease 0 (SQLite only: part of hold).
insert into penstock_slot (pool, lease, held) values (:pool, 0, 1)
on conflict (pool, lease) do update set held = held + 1;

-- known: the token of an attempt.
-- Differs: SQLite has one writer, and needs no lock.
select hash, deadline, told from penstock_token where job_id = :id and attempt = :attempt;

-- lease_of: under which lease an attempt runs, and its job.
-- Differs: SQLite has one writer, and needs no lock.
select r.lease, r.id, r.function, r.kind, r.args, r.run_at, r.pool, r.priority, r.options, r.on_complete, r.ending, r.attempt,
       r.enqueued_at, r.started_at,
       case when r.attempt > 1 and instr(r.options, '"max_duration"') then r.attempts ->> '$[#-1].failing_since' end
from penstock_running_job r where r.id = :id and r.attempt = :attempt and r.ending is null;

-- tell: what came of a token.
update penstock_token set told = :told, kept_until = :kept_until where job_id = :id and attempt = :attempt;

-- free_slot: give back the slot of a job that ran under lease 0.
update penstock_slot set held = max(0, held - 1) where pool = :pool and lease = 0;

-- overdue: jobs under lease 0 of which nobody has told in time.
-- Differs: SQLite has one writer, and needs no lock.
select r.id, r.function, r.kind, r.args, r.run_at, r.pool, r.priority, r.options, r.on_complete, r.ending, r.attempt,
       r.enqueued_at, r.started_at,
       case when r.attempt > 1 and instr(r.options, '"max_duration"') then r.attempts ->> '$[#-1].failing_since' end
from penstock_token t join penstock_running_job r on r.id = t.job_id and r.attempt = t.attempt
where t.told is null and t.deadline <= :now and r.lease = 0 order by t.deadline limit :limit;

-- canceled: jobs under lease 0 for which a request to cancel stands.
-- Differs: SQLite has one writer, and needs no lock.
select r.id, r.function, r.kind, r.args, r.run_at, r.pool, r.priority, r.options, r.on_complete, r.ending, r.attempt,
       r.enqueued_at, r.started_at,
       case when r.attempt > 1 and instr(r.options, '"max_duration"') then r.attempts ->> '$[#-1].failing_since' end
from penstock_token t join penstock_running_job r on r.id = t.job_id and r.attempt = t.attempt
where t.told is null and r.lease = 0 and r.id in (select c.job_id from penstock_cancel_request c) limit :limit;

-- prune: forget tokens that have had their time, but for those that jobs still wait for.
delete from penstock_token
where (job_id, attempt) in (
    select t.job_id, t.attempt from penstock_token t
    where t.kept_until <= :now
      and not exists (select 1 from penstock_running_job r where r.id = t.job_id and r.attempt = t.attempt and r.lease = 0)
    order by t.kept_until limit :limit
);
