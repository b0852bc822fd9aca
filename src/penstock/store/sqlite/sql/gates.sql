-- lock: whether a pool has a gate.
-- Differs: SQLite has one writer, and needs no lock.
select pool from penstock_gate where pool = :pool;

-- turns: the state of a pool's gate, and the keys whose jobs wait there and may start, beginning after the one that had
-- the last turn: of each, how many wait and run, and its token count. Keys that run as many as they may, or
-- of which no token is left, are passed by; the first row says when the next of these may start. Jobs that keep their turn
-- while they wait for their next attempt count as if they ran.
-- Differs: there is no LATERAL.
with recursive gate as materialized (
    select g.concurrency_key as last, p.key_parallelism, p.rate_limit, p.key_rate_limit, r.value, r.parts, r.moment, (
        select shut.open_at from penstock_rate_limit shut
        where p.key_rate_limit is not null and shut.name = 'pool:' || :pool and shut.open_at > :now and shut.key <> ''
          and exists (
            select 1 from penstock_scheduled_job s where s.waiting and s.pool = :pool and s.concurrency_key = shut.key
          )
        order by shut.open_at limit 1
    ) as next_open_at
    from penstock_gate g join penstock_pool p on p.name = g.pool
    left join penstock_rate_limit r on r.name = 'pool:' || g.pool and r.key = ''
    where g.pool = :pool
), ahead (key) as (
    select * from (
        select s.concurrency_key from penstock_scheduled_job s
        where s.waiting and s.pool = :pool and s.concurrency_key > (select last from gate)
        order by s.concurrency_key limit 1
    )
    union all
    select (
        select s.concurrency_key from penstock_scheduled_job s
        where s.waiting and s.pool = :pool and s.concurrency_key > ahead.key order by s.concurrency_key limit 1
    ) from ahead where ahead.key is not null
), again (key) as (
    select * from (
        select s.concurrency_key from penstock_scheduled_job s
        where s.waiting and s.pool = :pool order by s.concurrency_key limit 1
    )
    union all
    select (
        select s.concurrency_key from penstock_scheduled_job s
        where s.waiting and s.pool = :pool and s.concurrency_key > again.key order by s.concurrency_key limit 1
    ) from again where again.key < (select last from gate)
), turn as (
    select k.key, (
        select count(*) from (
            select 1 from penstock_running_job j
            where j.gated and j.pool = :pool and j.concurrency_key = k.key and j.ending is null
            union all
            select 1 from penstock_scheduled_job s
            where s.blocks_key and not s.waiting and s.pool = :pool and s.concurrency_key = k.key
        )
    ) as running
    from (
        select key from ahead where key is not null union all select key from again where key <= (select last from gate)
    ) k
), free as (
    select turn.key, turn.running, rate.value, rate.parts, rate.moment
    from turn left join penstock_rate_limit rate
        on rate.name = 'pool:' || :pool and rate.key = turn.key and turn.key <> ''
        and (select key_rate_limit from gate) is not null
    where (turn.key = '' or turn.running < (select coalesce(key_parallelism, 1000000000) from gate))
      and (rate.open_at is null or rate.open_at <= :now)
    limit :keys
)
select gate.key_parallelism, gate.rate_limit, gate.key_rate_limit, gate.value, gate.parts, gate.moment,
       gate.next_open_at, free.key, (
           select count(*) from (
               select 1 from penstock_scheduled_job s
               where s.waiting and s.pool = :pool and s.concurrency_key = free.key and {ours} limit :room
           )
       ), free.running, free.value, free.parts, free.moment
from gate left join free on true;

-- start: take jobs that wait at the gate of a pool, of one key. A pool whose limit was changed since the worker last looked
-- at it gives nothing. None starts behind a job of a task that is due and does not wait yet, as more are due than are let
-- wait at once.
-- Differs: takes them out; started puts them in. One statement a key.
delete from penstock_scheduled_job
where id in (
    select k.id from (
        select s.id, s.rank, s.place from penstock_scheduled_job s
        where s.waiting and s.pool = :pool and s.concurrency_key = :key and {ours}
          and not exists (select 1 from penstock_cancel_request c where c.job_id = s.id)
          and exists (select 1 from penstock_lease l where l.id = :lease)
          and exists (select 1 from penstock_pool p where p.name = :pool and p.epoch = :epoch)
        order by s.rank, s.place, s.id limit :count
    ) k
    where not exists (
        select 1 from penstock_scheduled_job e
        where e.gated and not e.waiting and e.concurrency_key <> '' and e.pool = :pool and e.concurrency_key = :key
          and (e.rank, e.place, e.id) < (k.rank, k.place, k.id) and e.run_at <= :now and e.options ->> 'task' is not null
          and not exists (select 1 from penstock_cancel_request c where c.job_id = e.id)
    )
)
returning {claimed_columns}, error, rank,
          attempts, case when attempt > 0 and instr(options, '"max_duration"') then attempts ->> '$[#-1].failing_since' end,
          concurrency_key;

-- started: put a job under its lease that has passed a gate (SQLite only: part of start).
insert into penstock_running_job (id, lease, function, kind, args, run_at, pool, priority, rank, options, on_complete,
    ending, attempt, enqueued_at, started_at, error, gated, concurrency_key, attempts)
values (:id, :lease, :function, :kind, :args, :run_at, :pool, :priority, :rank, :options, :on_complete, :ending, :attempt,
    :enqueued_at, :started_at, :error, 1, :concurrency_key, :attempts);

-- free_started: another job may have the key of one that has started (SQLite only: part of start).
delete from penstock_job_key where job_id = :id and until_start;

-- turned: remember who had the last turn (SQLite only: part of start).
update penstock_gate set concurrency_key = :last where pool = :pool;

-- close: have jobs that are ready pass the gate of their pool from now on, of which a rate limit was declared since.
-- Differs: copies them; closed takes them out.
insert into penstock_scheduled_job (id, pool, function, kind, args, priority, rank, gated, waiting, run_at, options,
    on_complete, attempt, enqueued_at, error, attempts)
select id, pool, function, kind, args, priority, rank, 1, 1, run_at, options, on_complete, attempt, enqueued_at, error, attempts
from penstock_ready_job where pool = :pool and ending is null;

-- closed: take out the jobs that pass the gate now (SQLite only: the other half of close).
delete from penstock_ready_job where pool = :pool and ending is null;
