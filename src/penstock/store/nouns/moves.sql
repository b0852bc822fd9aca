-- {asked}: whether anybody has asked for a cancel, or has something new for a run of a workflow.
(exists (select from penstock.cancel_request) or exists (select from penstock.workflow_wake))

-- {next_run_at}: when the next scheduled job is due that nobody wants to be canceled.
select s.run_at from penstock.scheduled_job s
where not s.waiting and (s.ending is not null or not exists (select from penstock.cancel_request c where c.job_id = s.id))
order by s.run_at, s.id limit 1

-- enqueue: store new jobs: due ones in ready; the others, and jobs that pass a gate, in scheduled.
-- SQLite: one job that is due, and passes no gate. It is in this process, so statements cost no round trip.
insert into penstock.ready_job ({job_columns}, ending, attempt, enqueued_at, error, attempts)
values (:id, :pool, :function, :kind, :args, :priority, :rank, :run_at, :options, :on_complete, :ending, :attempt,
    :enqueued_at, :error, :attempts);
-- PostgreSQL: one statement for any number of jobs.
with new as materialized (
    select * from unnest(
        :ids::uuid[], :pools::text[], :functions::text[], :kinds::text[], :args::text[], :priorities::smallint[],
        :ranks::bigint[], :run_ats::timestamptz[], :options::text[], :on_completes::text[], :concurrency_keys::text[]
    ) with ordinality
        as t ({job_columns}, concurrency_key, place)
), later as (
    insert into penstock.scheduled_job ({job_columns}, attempt, enqueued_at, gated, waiting, concurrency_key)
    select {job_columns}, 0, :now::timestamptz,
           concurrency_key is not null, concurrency_key is not null and run_at <= :now, coalesce(concurrency_key, '')
    from new where run_at > :now or concurrency_key is not null
)
insert into penstock.ready_job ({job_columns}, attempt, enqueued_at)
select {job_columns}, 0, :now
from new where run_at <= :now and concurrency_key is null order by place;

-- enqueue_one: store a new job that may start at once, as most do that come alone.
-- PostgreSQL: half the work of enqueue.
insert into penstock.ready_job ({job_columns}, attempt, enqueued_at)
values (:id, :pool, :function, :kind, :args, :priority, :rank, :run_at, :options, :on_complete, 0, :now);

-- enqueue_scheduled: store a new job that is due later, or passes a gate.
-- SQLite: the second half of enqueue.
insert into penstock.scheduled_job ({job_columns}, ending, attempt, enqueued_at, error,
     gated, waiting, concurrency_key, blocks_key, attempts)
values (:id, :pool, :function, :kind, :args, :priority, :rank, :run_at, :options, :on_complete, :ending, :attempt,
    :enqueued_at, :error, :gated, :waiting, :concurrency_key, :blocks_key, :attempts);

-- promote: move scheduled jobs that are due to ready, earliest first. Jobs to be canceled stay, and jobs that pass a
-- gate wait for it from now on.
-- SQLite: takes out jobs that pass no gate; enqueue puts them back in.
delete from penstock.scheduled_job
where id in (
    select s.id from penstock.scheduled_job s
    where s.run_at <= :now and not s.waiting and not s.gated
      and (s.ending is not null or not exists (select 1 from penstock.cancel_request c where c.job_id = s.id))
    order by s.run_at, s.id limit :limit
)
returning {job_columns}, ending, attempt, enqueued_at, error, attempts;
update penstock.scheduled_job set waiting = 1
where id in (
    select s.id from penstock.scheduled_job s
    where s.run_at <= :now and not s.waiting and s.gated
      and (s.ending is not null or not exists (select 1 from penstock.cancel_request c where c.job_id = s.id))
    order by s.run_at, s.id limit :limit
);
-- PostgreSQL: SKIP LOCKED steps around other workers, and one statement does both halves.
with due as materialized (
    select s.id, s.gated from penstock.scheduled_job s
    where s.run_at <= :now and not s.waiting
      and (s.ending is not null or not exists (select from penstock.cancel_request c where c.job_id = s.id))
    order by s.run_at, s.id limit :limit for update of s skip locked
), waiting as (
    update penstock.scheduled_job s set waiting = true from due where s.id = due.id and due.gated
), moved as (
    delete from penstock.scheduled_job s using due where s.id = due.id and not due.gated
    returning {s.job_columns}, s.ending, s.attempt, s.enqueued_at, s.error, s.attempts
)
insert into penstock.ready_job ({job_columns}, ending, attempt, enqueued_at, error, attempts)
select {job_columns}, ending, attempt, enqueued_at, error, attempts
from moved order by run_at, id;

-- look: whether a job waits for its on_complete, is ready in one of these pools, or waits at its gate; when the next
-- scheduled job is due; and whether anybody has asked for a cancel.
-- SQLite: looking takes no lock.
select exists (select 1 from penstock.ready_job where ending is not null and {ours_to_end}) or exists (
    select 1 from json_each(:pools) as p
    where exists (select 1 from penstock.ready_job r where r.pool = p.value and r.ending is null and {ours})
       or exists (select 1 from penstock.scheduled_job s where s.waiting and s.pool = p.value and {ours})
) as ready, ({next_run_at}) as next_run_at, {asked} as cancels;

-- waiting: those of these pools at whose gates jobs wait, or are to.
-- SQLite: part of claim.
select p.value as pool from json_each(:pools) as p
where exists (select 1 from penstock.scheduled_job s where s.waiting and s.pool = p.value and {ours})
   or (exists (select 1 from penstock.pool where name = p.value and rate_limit is not null)
       and exists (select 1 from penstock.ready_job r where r.pool = p.value and r.ending is null and {ours}));

-- next_run_at: when the next scheduled job is due, and whether anybody has asked for a cancel.
-- SQLite: part of claim.
select ({next_run_at}) as next_run_at, {asked} as cancels;

-- claim: give ready jobs to a lease: jobs that wait for their on_complete, then of each pool as many as it has room
-- for. A pool whose limit was changed since the worker last looked at it gives nothing. If there are more, those of the
-- pools that run the least come first, of equals of those named first.
-- SQLite: chooses the jobs of one pool, the most urgent first; start moves them.
select r.seq, r.rank, r.id, r.function, r.kind, r.args, r.run_at, r.pool, r.priority, r.options, r.on_complete, r.ending,
       r.attempt + 1 as attempt, r.enqueued_at,
       case when r.attempt > 0 and instr(r.options, '"max_duration"') then r.attempts ->> '$[#-1].failing_since' end
           as failing_since
from penstock.ready_job r
where r.pool = :pool and r.ending is null and {ours}
  and not exists (select 1 from penstock.cancel_request c where c.job_id = r.id)
  and exists (select 1 from penstock.lease l where l.id = :lease)
  and (:epoch is null or exists (
      select 1 from penstock.pool p where p.name = :pool and p.epoch = :epoch and p.rate_limit is null
  ))
order by r.rank, r.seq limit :limit;
-- PostgreSQL: SKIP LOCKED steps around other workers, and one statement moves the rows and looks at the schedule. It
-- holds the pools against a change of their limits, which waits for earlier claims, and after which nothing starts as
-- before. It begins after a place in each pool (see heads.py). The first row is of no job: it is what the claim has seen,
-- and how many entries of the index it has passed over.
with ending as materialized (
    select r.ctid from penstock.ready_job r
    where r.ending is not null and exists (select from penstock.lease l where l.id = :lease) and {ours_to_end}
    order by r.seq limit :limit for update of r skip locked
), limited as materialized (
    select p.name, p.epoch from penstock.pool p where p.name = any(:pools::text[]) and p.rate_limit is null
    order by p.name for key share of p
), before as materialized (
    select pg_stat_get_xact_tuples_returned('penstock.ready_job_order'::regclass) as passed
), room as materialized (
    select t.pool, t.room, t.running, t.rank, t.seq, t.place from before cross join unnest(
        :pools, :rooms::integer[], :epochs::bigint[], :running::integer[], :after_ranks::bigint[], :after_seqs::bigint[]
    ) with ordinality as t (pool, room, epoch, running, rank, seq, place)
    where exists (select from penstock.lease l where l.id = :lease)
      and (t.epoch is null or exists (select from limited p where p.name = t.pool and p.epoch = t.epoch))
), due as materialized (
    select j.ctid, j.rank, j.seq, room.running + j.turn as turn, room.place
    from room cross join lateral (
        select k.ctid, k.rank, k.seq, row_number() over () as turn from (
            select r.ctid, r.rank, r.seq from penstock.ready_job r
            where r.pool = room.pool and r.ending is null and (r.rank, r.seq) > (room.rank, room.seq) and {ours} and (
                not exists (select from penstock.cancel_request)
                or not exists (select from penstock.cancel_request c where c.job_id = r.id)
            )
            order by r.rank, r.seq limit room.room for update of r skip locked
        ) k
    ) j
), chosen as materialized (
    select ctid from ending
    union all
    (select ctid from due order by turn, place, rank, seq limit :limit - (select count(*) from ending))
), taken as (
    delete from penstock.ready_job r where r.ctid = any(array(select ctid from chosen))
    returning {r.job_columns}, r.ending,
              r.attempt + (r.ending is null)::integer as attempt, r.enqueued_at, r.error, r.attempts, r.seq
), started as (
    insert into penstock.running_job (id, lease, pool, function, kind, args, priority, rank, run_at, options, on_complete,
        ending, attempt, enqueued_at, started_at, error, attempts)
    select id, :lease, pool, function, kind, args, priority, rank, run_at, options, on_complete, ending, attempt,
           enqueued_at, :now::timestamptz, error, attempts
    from taken
), seen as (
    select ({next_run_at}) as next_run_at, {asked} as cancels, array(
        select p.pool from unnest(:pools) as p (pool)
        where exists (select from penstock.scheduled_job s where s.waiting and s.pool = p.pool and {ours})
           or (exists (select from penstock.pool o where o.name = p.pool and o.rate_limit is not null)
               and exists (select from penstock.ready_job r where r.pool = p.pool and r.ending is null and {ours}))
    ) as gates
)
select id, function, kind, args, run_at, pool, priority, options, on_complete, ending, attempt, rank, seq, {failing_since},
       nullif(enqueued_at, run_at) as enqueued_at,  -- what need not be sent is not
       next_run_at, cancels, gates, case when cancels is not null then
           pg_stat_get_xact_tuples_returned('penstock.ready_job_order'::regclass) - (select passed from before)
       end as passed
from seen full join taken on false order by rank nulls first, seq;

-- claim_ending: the jobs that wait for their on_complete and are given to a lease.
-- SQLite: part of claim.
select r.seq, r.rank, {r.claimed_columns}, null as failing_since
from penstock.ready_job r
where r.ending is not null and exists (select 1 from penstock.lease l where l.id = :lease) and {ours_to_end}
order by r.seq limit :limit;

-- start: put chosen jobs under their lease.
-- SQLite: the last part of claim.
insert into penstock.running_job (id, lease, function, kind, args, run_at, pool, priority, rank, options, on_complete,
    ending, attempt, enqueued_at, started_at, error, attempts)
select id, :lease, function, kind, args, run_at, pool, priority, rank, options, on_complete, ending,
    attempt + (ending is null), enqueued_at, :started_at, error, attempts
from penstock.ready_job where seq in (select value from json_each(:seqs)) order by seq;
delete from penstock.ready_job where seq in (select value from json_each(:seqs));

-- held: the jobs that run under a lease.
-- SQLite: part of succeed.
select id, rowid as place from penstock.running_job where lease = :lease;

-- succeed: write that running jobs have returned, and nothing follows from it: the end of most. Values that they have in
-- common come once; `returned` are those with values of their own. The lease is the fence: the jobs that it does
-- not hold any more are returned.
-- SQLite: the fence is held, which tells the rows that the lease holds. Here are their results by row, for all that end
-- at one time. A statement for each job would keep its pages for an undo of its own.
insert into penstock.finished_job ({ended_columns}, started_at, finished_at, expires_at, state, result, attempts)
select {r.ended_columns}, r.started_at, :finished_at, :expires_at, 'success', returned.value, r.attempts
from json_each(:results) returned join penstock.running_job r on r.rowid = cast(returned.key as integer);
delete from penstock.running_job where rowid in (select cast(key as integer) from json_each(:results));
-- PostgreSQL: one statement for any number of jobs.
with gone as (
    delete from penstock.running_job r where r.id = any(:ids::uuid[]) and r.lease = :lease
    returning {r.ended_columns}, r.started_at, r.attempts
), ended as (
    insert into penstock.finished_job (day, {ended_columns}, started_at, finished_at, expires_at, state, result, attempts)
    select coalesce(o.day, :day::smallint), {g.ended_columns}, g.started_at, coalesce(o.finished_at, :finished_at::timestamptz),
           coalesce(o.expires_at, :expires_at::timestamptz), 'success', coalesce(o.result, :result::text), g.attempts
    from gone g left join unnest(
        :returned::uuid[], :results::text[], :finished_ats::timestamptz[], :expires_ats::timestamptz[], :days::smallint[]
    ) as o (id, result, finished_at, expires_at, day) on o.id = g.id
)
select t.id from unnest(:ids) as t (id)
where (select count(*) from gone) < cardinality(:ids) and t.id not in (select id from gone);

-- settle: write the settlements of running jobs. If only its on_complete was left of one, it keeps the time when its last
-- attempt began. The lease is the fence: a job it no longer holds is not returned.
-- SQLite: takes it out; end, enqueue or enqueue_scheduled puts it in. In a returning clause SQLite takes columns that
-- are null for not null if it is asked with "is null"; so coalesce is.
delete from penstock.running_job where id = :id and lease = :lease
returning {job_columns}, enqueued_at,
    iif(coalesce(ending, '') = '', started_at, ending ->> 'started_at') as started_at, error, gated, concurrency_key,
    case when :failed_attempt is null then attempts
         when json_array_length(coalesce(attempts, '[]')) < 20
         then json_insert(coalesce(attempts, '[]'), '$[#]', json(:failed_attempt))
         else json_insert(json_remove(attempts, '$[0]'), '$[#]', json(:failed_attempt)) end as attempts;
-- PostgreSQL: one statement for any number of jobs.
with outcome as materialized (
    select * from unnest(
        :ids::uuid[], :states::text[], :attempts::integer[], :run_ats::timestamptz[], :finished_ats::timestamptz[],
        :expires_ats::timestamptz[], :days::smallint[], :results::text[], :errors::text[], :tracebacks::text[],
        :endings::text[], :on_complete_errors::text[], :on_complete_attempts::text[], :failed_attempts::text[],
        :blocks_keys::boolean[], :keeps_ranks::boolean[]
    ) as t (id, state, attempt, run_at, finished_at, expires_at, day, result, error, traceback, ending, on_complete_error,
            on_complete_attempts, failed, blocks_key, keeps_rank)
), gone as (
    delete from penstock.running_job r using outcome o
    where r.id = o.id and r.id = any(:ids) and r.lease = :lease  -- said twice: the index of a table with many dead rows
    returning r.id, r.pool, r.function, r.kind, r.args, r.priority, r.options, r.on_complete, r.enqueued_at,
              case when r.ending is null then r.started_at else (r.ending::jsonb ->> 'started_at')::timestamptz end as started_at,
              r.gated, r.concurrency_key, r.rank, r.run_at as last_run_at,
              o.state, o.attempt, o.run_at, o.finished_at, o.expires_at, o.day, o.result, o.error, o.traceback, o.ending,
              o.on_complete_error, o.on_complete_attempts, r.error as last_error,
              coalesce(o.blocks_key, false) and r.concurrency_key <> '' as blocks_key,
              coalesce(o.keeps_rank, false) as keeps_rank,
              case when o.failed is null then r.attempts
                   when r.attempts is null then '[' || o.failed || ']'
                   when jsonb_array_length(r.attempts::jsonb) < 20 then (r.attempts::jsonb || o.failed::jsonb)::text
                   else (r.attempts::jsonb - 0 || o.failed::jsonb)::text end as attempts
), ended as (
    insert into penstock.finished_job (day, {ended_columns}, started_at, finished_at, expires_at, state, result, error,
        traceback, on_complete_error, on_complete_attempts, attempts)
    select day, {ended_columns}, started_at,
           finished_at, expires_at, state, result, error, traceback, on_complete_error, on_complete_attempts, attempts
    from gone where state not in ('pending', 'completing')
), completing as (
    insert into penstock.ready_job ({job_columns}, ending, attempt, enqueued_at, error, attempts)
    select {job_columns}, ending, attempt, enqueued_at, error, attempts
    from gone where state = 'completing' and run_at <= finished_at
), again as (
    insert into penstock.scheduled_job ({job_columns}, ending, attempt, enqueued_at, error,
         gated, concurrency_key, blocks_key, attempts)
    select id, pool, function, kind, args, priority,
           case when keeps_rank and gated then -9000000000000000000 + (extract(epoch from enqueued_at) * 1000000)::bigint
                when keeps_rank or blocks_key then rank
                else rank + (extract(epoch from run_at - last_run_at) * 1000000)::bigint end, run_at,
           options, on_complete, ending, attempt, enqueued_at, coalesce(error, last_error),
           gated and state = 'pending', concurrency_key, blocks_key, attempts
    from gone where state = 'pending' or (state = 'completing' and run_at > finished_at)
), freed as (
    delete from penstock.job_key k where k.job_id = any(:freed::uuid[]) and k.job_id in (select id from gone)
)
select id from gone;

-- end: keep the status of a job that has ended.
-- SQLite: the second half of settle.
insert into penstock.finished_job ({ended_columns}, started_at, finished_at, expires_at, state, result, error, traceback,
    on_complete_error, on_complete_attempts, attempts)
values (:id, :pool, :function, :kind, :args, :priority, :run_at, :options, :on_complete, :attempt, :enqueued_at,
    :started_at, :finished_at, :expires_at, :state, :result, :error, :traceback, :on_complete_error,
    :on_complete_attempts, :attempts);

-- cancelable: pending jobs for which a request to cancel stands, held against other workers. A run that has begun learns
-- of it in its inbox; it may have gone to sleep a moment ago.
with asked as materialized (
    select c.job_id as id from penstock.cancel_request c
    where (exists (select from penstock.ready_job j where j.id = c.job_id and j.ending is null)
           or exists (select from penstock.scheduled_job j where j.id = c.job_id and j.ending is null))
      and not exists (select from penstock.workflow_record r where r.run = c.job_id and r.number = 0)
    limit :limit
), ready as (
    select j.* from penstock.ready_job j join asked on j.id = asked.id for update of j skip locked
), scheduled as (
    select j.* from penstock.scheduled_job j join asked on j.id = asked.id for update of j skip locked
)
select {claimed_columns}, :now::timestamptz as started_at from ready
union
select {claimed_columns}, :now from scheduled;

-- settle_pending: write the settlements of pending jobs that were canceled.
-- SQLite: takes a job out of either place; end or enqueue puts it in.
delete from penstock.ready_job where id = :id
returning {job_columns}, attempt, enqueued_at, attempts;
delete from penstock.scheduled_job where id = :id
returning {job_columns}, attempt, enqueued_at, attempts;
-- PostgreSQL: one statement for any number of jobs.
with outcome as materialized (
    select * from unnest(
        :ids::uuid[], :states::text[], :finished_ats::timestamptz[], :expires_ats::timestamptz[], :days::smallint[],
        :endings::text[]
    ) as t (id, state, finished_at, expires_at, day, ending)
), ready as (
    delete from penstock.ready_job j using outcome o where j.id = o.id
    returning {j.job_columns}, j.attempt, j.enqueued_at, j.attempts
), scheduled as (
    delete from penstock.scheduled_job j using outcome o where j.id = o.id
    returning {j.job_columns}, j.attempt, j.enqueued_at, j.attempts
), gone as (
    select * from ready union all select * from scheduled
), ended as (
    insert into penstock.finished_job (day, {ended_columns}, finished_at, expires_at, state, attempts)
    select o.day, {g.ended_columns}, o.finished_at, o.expires_at, o.state, g.attempts
    from gone g join outcome o on o.id = g.id where o.state <> 'completing'
), completing as (
    insert into penstock.ready_job ({job_columns}, ending, attempt, enqueued_at, attempts)
    select {g.job_columns}, o.ending, g.attempt, g.enqueued_at, g.attempts
    from gone g join outcome o on o.id = g.id where o.state = 'completing'
), cleared as (
    delete from penstock.cancel_request c where c.job_id in (select id from gone)
), freed as (
    delete from penstock.job_key k where k.job_id = any(:freed::uuid[]) and k.job_id in (select id from gone)
)
select id from gone;

-- free_key: another job may have the key of this one.
-- SQLite: part of settle and settle_pending.
delete from penstock.job_key where job_id = :id;

-- clear_request: forget requests to cancel a job.
-- SQLite: part of settle_pending.
delete from penstock.cancel_request where job_id = :id;

-- retry: make jobs pending again that have failed or were canceled; one that is not so any more is not returned.
-- Requests to cancel it that came before are forgotten. Its attempts begin again, the outcomes of the last ones are
-- kept, and their tokens count no more.
-- SQLite: takes it out; enqueue puts it in, and clear_request forgets requests to cancel it that came before.
delete from penstock.finished_job where id = :id and state in ('failed', 'canceled') and expires_at > :now
returning id, pool, function, kind, args, priority, options, on_complete, enqueued_at, error, attempts;
-- PostgreSQL: one statement for any number of jobs.
with asked as materialized (
    select id, min(place) as place from unnest(:ids::uuid[]) with ordinality as t (id, place) group by id
), gone as (
    delete from penstock.finished_job j using asked
    where j.id = asked.id and j.state in ('failed', 'canceled') and j.expires_at > :now::timestamptz
    returning j.id, j.pool, j.function, j.kind, j.args, j.priority, j.options, j.on_complete, j.enqueued_at, j.error,
              j.attempts, asked.place
), cleared as (
    delete from penstock.cancel_request c where c.job_id in (select id from gone)
), voided as (
    update penstock.token t set told = 'expired' where t.told is null and t.job_id in (select id from gone)
), anew as materialized (
    select g.*, (extract(epoch from :now) * 1000000)::bigint - g.priority * coalesce(p.ageing, :no_ageing::bigint) as rank,
           coalesce(
               g.options::jsonb ->> 'concurrency_key',
               case when p.rate_limit is not null or g.options::jsonb ->> 'key' is not null then '' end
           ) as concurrency_key
    from gone g left join penstock.pool p on p.name = g.pool
), ready as (
    insert into penstock.ready_job ({job_columns}, attempt, enqueued_at, error, attempts)
    select id, pool, function, kind, args, priority, rank, :now, options, on_complete, 0, enqueued_at, error, attempts
    from anew where concurrency_key is null order by place
), waiting as (
    insert into penstock.scheduled_job ({job_columns}, attempt, enqueued_at, error, attempts, gated, waiting, concurrency_key)
    select id, pool, function, kind, args, priority, rank, :now, options, on_complete, 0, enqueued_at, error, attempts,
           true, true, concurrency_key
    from anew where concurrency_key is not null
)
select id from anew order by place;

-- recall: let jobs whose on_complete has raised for the last time wait for it again, with their endings. One that is
-- not so any more is not returned.
-- SQLite: takes it out; enqueue puts it in.
delete from penstock.finished_job where id = :id and on_complete_error is not null and expires_at > :now
returning id, pool, function, kind, args, priority, options, on_complete, attempt, enqueued_at, attempts,
    json_object(
        'state', state, 'finished_at', finished_at, 'result', result, 'error', error, 'traceback', traceback,
        'started_at', started_at, 'run_at', run_at, 'attempts', json(on_complete_attempts)
    ) as ending;
-- PostgreSQL: one statement for any number of jobs.
with gone as (
    delete from penstock.finished_job
    where id = any(:ids::uuid[]) and on_complete_error is not null and expires_at > :now::timestamptz
    returning *
)
insert into penstock.ready_job ({job_columns}, ending, attempt, enqueued_at, attempts)
select id, pool, function, kind, args, priority, (extract(epoch from :now) * 1000000)::bigint, :now, options, on_complete,
       json_build_object(
           'state', state, 'finished_at', to_char(finished_at at time zone 'utc', 'YYYY-MM-DD"T"HH24:MI:SS.US"Z"'),
           'started_at', to_char(started_at at time zone 'utc', 'YYYY-MM-DD"T"HH24:MI:SS.US"Z"'),
           'run_at', to_char(run_at at time zone 'utc', 'YYYY-MM-DD"T"HH24:MI:SS.US"Z"'),
           'result', result, 'error', error, 'traceback', traceback, 'attempts', on_complete_attempts::json
       )::text, attempt, enqueued_at, attempts
from gone order by run_at, id
returning id;

-- void_tokens: the tokens of the attempts before count no more.
-- SQLite: part of retry.
update penstock.token set told = 'expired' where job_id = :id and told is null;

-- retried_in: how jobs of a pool gain priority, and whether it has a rate limit.
-- SQLite: part of retry.
select max(ageing), max(rate_limit is not null) from penstock.pool where name = :pool;

-- count_day: how many finished jobs a partition holds. From :most on it is an estimate, since counting millions takes
-- long.
-- PostgreSQL: SQLite deletes them one by one.
select greatest(found.number, case when found.number >= :most then c.reltuples end)::bigint
from (select count(*) as number from (select from penstock.finished_job where day = :day limit :most) few) found
left join pg_class c on c.oid = to_regclass('penstock.finished_job_' || :day);

-- prune: forget finished jobs once their time is over; where they are parted, rows that stayed longer than the ring of
-- partitions turns. It skips locked ones.
delete from penstock.finished_job_long where id in (
    with old as materialized (
        select id from penstock.finished_job_long where expires_at <= :now order by expires_at limit :limit
        for update skip locked
    ) select id from old
);
