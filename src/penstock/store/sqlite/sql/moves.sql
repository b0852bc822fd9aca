-- enqueue: store a new job that is due in ready, unless it passes a gate.
-- Differs: one statement a job and place; SQLite is in this process, so statements cost no round trip.
insert into penstock_ready_job ({job_columns}, ending, attempt, enqueued_at, error, attempts)
values (:id, :pool, :function, :kind, :args, :priority, :rank, :run_at, :options, :on_complete, :ending, :attempt,
    :enqueued_at, :error, :attempts);

-- enqueue_scheduled: store a new job that is due later, or passes a gate (SQLite only: the second half of enqueue).
insert into penstock_scheduled_job ({job_columns}, ending, attempt, enqueued_at, error,
     gated, waiting, concurrency_key, blocks_key, attempts)
values (:id, :pool, :function, :kind, :args, :priority, :rank, :run_at, :options, :on_complete, :ending, :attempt,
    :enqueued_at, :error, :gated, :waiting, :concurrency_key, :blocks_key, :attempts);

-- promote: move scheduled jobs that are due to ready, earliest first; those to be canceled stay.
-- Differs: takes them out; enqueue puts them back in.
delete from penstock_scheduled_job
where id in (
    select s.id from penstock_scheduled_job s
    where s.run_at <= :now and not s.waiting and not s.gated
      and (s.ending is not null or not exists (select 1 from penstock_cancel_request c where c.job_id = s.id))
    order by s.run_at, s.id limit :limit
)
returning {job_columns}, ending, attempt, enqueued_at, error, attempts;

-- promote_gated: let scheduled jobs that are due wait for their gate (SQLite only: the other half of promote).
update penstock_scheduled_job set waiting = 1
where id in (
    select s.id from penstock_scheduled_job s
    where s.run_at <= :now and not s.waiting and s.gated
      and (s.ending is not null or not exists (select 1 from penstock_cancel_request c where c.job_id = s.id))
    order by s.run_at, s.id limit :limit
);

-- look: whether a job waits for its on_complete, is ready in one of these pools, or waits at its gate; when the next
-- scheduled job is due; and whether anybody has asked for a cancel (SQLite only: looking takes no lock).
select exists (select 1 from penstock_ready_job where ending is not null and {ours_to_end}) or exists (
    select 1 from json_each(:pools) as p
    where exists (select 1 from penstock_ready_job r where r.pool = p.value and r.ending is null and {ours})
       or exists (select 1 from penstock_scheduled_job s where s.waiting and s.pool = p.value and {ours})
), (
    select s.run_at from penstock_scheduled_job s
    where not s.waiting and (s.ending is not null or not exists (select 1 from penstock_cancel_request c where c.job_id = s.id)) order by s.run_at, s.id limit 1
), exists (select 1 from penstock_cancel_request);

-- waiting: those of these pools at whose gates jobs wait, or are to (SQLite only: part of claim).
select p.value from json_each(:pools) as p
where exists (select 1 from penstock_scheduled_job s where s.waiting and s.pool = p.value and {ours})
   or (exists (select 1 from penstock_pool where name = p.value and rate_limit is not null)
       and exists (select 1 from penstock_ready_job r where r.pool = p.value and r.ending is null and {ours}));

-- next_run_at: when the next scheduled job is due, and whether anybody has asked for a cancel (SQLite only: part of
-- claim).
select (
    select s.run_at from penstock_scheduled_job s
    where not s.waiting and (s.ending is not null or not exists (select 1 from penstock_cancel_request c where c.job_id = s.id)) order by s.run_at, s.id limit 1
), exists (select 1 from penstock_cancel_request);

-- claim: give ready jobs of a pool to a lease, the most urgent first. A pool whose limit was changed since the worker
-- last looked at it gives nothing.
-- Differs: only chooses them; start and started move them. One statement a pool.
select r.seq, r.rank, r.id, r.function, r.kind, r.args, r.run_at, r.pool, r.priority, r.options, r.on_complete, r.ending,
       r.attempt + 1, r.enqueued_at,
       case when r.attempt > 0 and instr(r.options, '"max_duration"') then r.attempts ->> '$[#-1].failing_since' end
from penstock_ready_job r
where r.pool = :pool and r.ending is null and {ours}
  and not exists (select 1 from penstock_cancel_request c where c.job_id = r.id)
  and exists (select 1 from penstock_lease l where l.id = :lease)
  and (:epoch is null or exists (
      select 1 from penstock_pool p where p.name = :pool and p.epoch = :epoch and p.rate_limit is null
  ))
order by r.rank, r.seq limit :limit;

-- claim_ending: the jobs that wait for their on_complete and are given to a lease (SQLite only: part of claim).
select r.seq, r.rank, {r.claimed_columns}, null
from penstock_ready_job r
where r.ending is not null and exists (select 1 from penstock_lease l where l.id = :lease) and {ours_to_end}
order by r.seq limit :limit;

-- start: put chosen jobs under their lease (SQLite only: the second part of claim).
insert into penstock_running_job (id, lease, function, kind, args, run_at, pool, priority, rank, options, on_complete,
    ending, attempt, enqueued_at, started_at, error, attempts)
select id, :lease, function, kind, args, run_at, pool, priority, rank, options, on_complete, ending,
    attempt + (ending is null), enqueued_at, :started_at, error, attempts
from penstock_ready_job where seq in (select value from json_each(:seqs)) order by seq;

-- started: jobs that are under a lease are not ready any more (SQLite only: the last part of claim).
delete from penstock_ready_job where seq in (select value from json_each(:seqs));

-- held: the jobs that run under a lease (SQLite only: part of succeed).
select id, rowid from penstock_running_job where lease = :lease;

-- succeed: write that running jobs have returned, and nothing follows from it: the end of most.
-- Differs: the fence is held, which tells the rows that the lease holds. Here are their results by row, for all that end at
-- one time: a statement for each job would keep its pages for an undo of its own.
insert into penstock_finished_job ({ended_columns}, started_at, finished_at, expires_at, state, result, attempts)
select {r.ended_columns}, r.started_at, :finished_at, :expires_at, 'success', returned.value, r.attempts
from json_each(:results) returned join penstock_running_job r on r.rowid = cast(returned.key as integer);

-- succeeded: jobs that have returned run no more (SQLite only: the second half of succeed).
delete from penstock_running_job where rowid in (select cast(key as integer) from json_each(:results));

-- settle: take a running job from its lease. If only its on_complete was left, it keeps the time when its last attempt
-- began. The lease is the fence: a job it no longer holds is not returned.
-- Differs: takes it out; end, enqueue or enqueue_scheduled puts it in. In a returning clause SQLite takes columns that are
-- null for not null if it is asked with "is null"; so coalesce is.
delete from penstock_running_job where id = :id and lease = :lease
returning {job_columns}, enqueued_at,
    iif(coalesce(ending, '') = '', started_at, ending ->> 'started_at') as started_at, error, gated, concurrency_key,
    case when :failed_attempt is null then attempts
         when json_array_length(coalesce(attempts, '[]')) < 20
         then json_insert(coalesce(attempts, '[]'), '$[#]', json(:failed_attempt))
         else json_insert(json_remove(attempts, '$[0]'), '$[#]', json(:failed_attempt)) end as attempts;

-- end: keep the status of a job that has ended (SQLite only: the second half of settle).
insert into penstock_finished_job ({ended_columns}, started_at, finished_at, expires_at, state, result, error, traceback,
    on_complete_error, on_complete_attempts, attempts)
values (:id, :pool, :function, :kind, :args, :priority, :run_at, :options, :on_complete, :attempt, :enqueued_at,
    :started_at, :finished_at, :expires_at, :state, :result, :error, :traceback, :on_complete_error,
    :on_complete_attempts, :attempts);

-- cancelable: pending jobs for which a request to cancel stands.
select {j.claimed_columns}, :now, null
from penstock_cancel_request c join penstock_ready_job j on j.id = c.job_id where j.ending is null
union
select {j.claimed_columns}, :now, null
from penstock_cancel_request c join penstock_scheduled_job j on j.id = c.job_id where j.ending is null
limit :limit;

-- settle_pending: take a job out of ready (SQLite only in two: end or enqueue puts it in).
-- Differs: one statement a job and place.
delete from penstock_ready_job where id = :id
returning {job_columns}, attempt, enqueued_at, attempts;

-- settle_scheduled: take a job out of scheduled (SQLite only: the other half of settle_pending).
delete from penstock_scheduled_job where id = :id
returning {job_columns}, attempt, enqueued_at, attempts;

-- free_key: another job may have the key of this one (SQLite only: part of settle and settle_pending).
delete from penstock_job_key where job_id = :id;

-- clear_request: forget requests to cancel a job (SQLite only: part of settle_pending).
delete from penstock_cancel_request where job_id = :id;

-- retry: take out a job that has failed or was canceled, to make it pending again; otherwise nothing is returned.
-- Differs: takes it out; enqueue puts it in, and clear_request forgets requests to cancel it that came before.
delete from penstock_finished_job where id = :id and state in ('failed', 'canceled') and expires_at > :now
returning id, pool, function, kind, args, priority, options, on_complete, enqueued_at, error, attempts;

-- recall: take out a job whose on_complete has raised for the last time, with its ending, to call that again; otherwise
-- nothing is returned.
-- Differs: takes it out; enqueue puts it in.
delete from penstock_finished_job where id = :id and on_complete_error is not null and expires_at > :now
returning id, pool, function, kind, args, priority, options, on_complete, attempt, enqueued_at, attempts,
    json_object(
        'state', state, 'finished_at', finished_at, 'result', result, 'error', error, 'traceback', traceback,
        'started_at', started_at, 'run_at', run_at, 'attempts', json(on_complete_attempts)
    );

-- void_tokens: the tokens of the attempts before count no more (SQLite only: part of retry).
update penstock_token set told = 'expired' where job_id = :id and told is null;

-- retried_in: how jobs of a pool gain priority, and whether it has a rate limit (SQLite only: part of retry).
select max(ageing), max(rate_limit is not null) from penstock_pool where name = :pool;

-- prune: forget finished jobs once their time is over.
delete from penstock_finished_job
where id in (select id from penstock_finished_job where expires_at <= :now order by expires_at limit :limit);
