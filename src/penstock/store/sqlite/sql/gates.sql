-- lock: whether a pool has a gate.
-- Differs: SQLite has one writer, and needs no lock.
select pool from penstock_turn where pool = :pool;

-- turns: how the gate of a pool stands, and the keys whose jobs wait there and that do not run as many as they may,
-- beginning after the one that had the last turn: of each, how many wait and run, and what is left of its rate limit.
-- Differs: there is no LATERAL.
with recursive gate as materialized (
    select t.concurrency_key as last, p.key_parallelism, p.rate_limit, p.key_rate_limit, r.value, r.parts, r.moment
    from penstock_turn t join penstock_pool p on p.name = t.pool
    left join penstock_rate_limit r on r.name = 'pool:' || t.pool and r.key = ''
    where t.pool = :pool
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
            where j.pool = :pool and j.concurrency_key = k.key and j.concurrency_key <> '' and j.ending is null
            limit max(:room, (select coalesce(key_parallelism, 0) from gate))
        )
    ) as running
    from (
        select key from ahead where key is not null union all select key from again where key <= (select last from gate)
    ) k
), free as (
    select turn.key, turn.running from turn
    where turn.key = '' or turn.running < (select coalesce(key_parallelism, 1000000000) from gate)
    limit :room
)
select gate.key_parallelism, gate.rate_limit, gate.key_rate_limit, gate.value, gate.parts, gate.moment,
       free.key, (
           select count(*) from (
               select 1 from penstock_scheduled_job s
               where s.waiting and s.pool = :pool and s.concurrency_key = free.key limit :room
           )
       ), free.running, r.value, r.parts, r.moment
from gate left join free on true
left join penstock_rate_limit r on r.name = 'pool:' || :pool and r.key = free.key and free.key <> '';

-- start: take jobs that wait at the gate of a pool, of one key. A pool whose limit was changed since the worker last looked
-- at it gives nothing.
-- Differs: takes them out; start of jobs puts them in. One statement a key.
delete from penstock_scheduled_job
where id in (
    select s.id from penstock_scheduled_job s
    where s.waiting and s.pool = :pool and s.concurrency_key = :key
      and not exists (select 1 from penstock_cancel_request c where c.job_id = s.id)
      and exists (select 1 from penstock_lease l where l.id = :lease)
      and exists (select 1 from penstock_pool p where p.name = :pool and p.epoch = :epoch)
    order by s.rank, s.id limit :count
)
returning id, function, kind, args, run_at, pool, priority, options, on_complete, ending, attempt, enqueued_at, error, rank,
          concurrency_key;

-- free_started: another job may have the key of one that has started (SQLite only: part of start).
delete from penstock_job_key where job_id = :id and until_start;

-- turned: remember who had the last turn (SQLite only: part of start).
update penstock_turn set concurrency_key = :last where pool = :pool;

-- close: have jobs that are ready pass the gate of their pool from now on, of which a rate limit was declared since.
-- Differs: copies them; closed takes them out.
insert into penstock_scheduled_job (id, pool, function, kind, args, priority, rank, gated, waiting, run_at, options,
    on_complete, attempt, enqueued_at, error)
select id, pool, function, kind, args, priority, rank, 1, 1, run_at, options, on_complete, attempt, enqueued_at, error
from penstock_ready_job where pool = :pool and ending is null;

-- closed: take out the jobs that pass the gate now (SQLite only: the other half of close).
delete from penstock_ready_job where pool = :pool and ending is null;
