-- {gate}: the gate of a pool, and when the first of its keys that are shut may start.
gate as materialized (
    select g.concurrency_key as last, p.key_parallelism, p.rate_limit, p.key_rate_limit, r.value, r.parts, r.moment, (
        select shut.open_at from penstock.rate_limit shut
        where p.key_rate_limit is not null and shut.name = 'pool:' || :pool and shut.open_at > :now and shut.key <> ''
          and exists (
            select from penstock.scheduled_job s where s.waiting and s.pool = :pool and s.concurrency_key = shut.key
          )
        order by shut.open_at limit 1
    ) as opens_at
    from penstock.gate g join penstock.pool p on p.name = g.pool
    left join penstock.rate_limit r on r.name = 'pool:' || g.pool and r.key = ''
    where g.pool = :pool
)

-- {runs}: the jobs of a key that run, or keep its turn while they wait for their next attempt.
select from penstock.running_job j
where j.gated and j.pool = :pool and j.concurrency_key = k.key and j.ending is null
union all
select from penstock.scheduled_job s
where s.blocks_key and not s.waiting and s.pool = :pool and s.concurrency_key = k.key

-- {begun}: the runs of workflows of a key that have begun, and wait for a slot only: they come first, and need no token.
select count(*) from (
    select from penstock.scheduled_job s
    where s.waiting and s.pool = :pool and s.concurrency_key = k.key and s.rank < -8900000000000000000 and {ours} limit :room
) few

-- {line}: the keys whose jobs wait at a gate, in order: those after the one that had the last turn, then from the first on.
ahead (key) as (
    select * from (
        select s.concurrency_key from penstock.scheduled_job s
        where s.waiting and s.pool = :pool and s.concurrency_key > (select last from gate)
        order by s.concurrency_key limit 1
    ) first
    union all
    select (
        select s.concurrency_key from penstock.scheduled_job s
        where s.waiting and s.pool = :pool and s.concurrency_key > ahead.key order by s.concurrency_key limit 1
    ) from ahead where ahead.key is not null
), again (key) as (
    select * from (
        select s.concurrency_key from penstock.scheduled_job s
        where s.waiting and s.pool = :pool order by s.concurrency_key limit 1
    ) first
    union all
    select (
        select s.concurrency_key from penstock.scheduled_job s
        where s.waiting and s.pool = :pool and s.concurrency_key > again.key order by s.concurrency_key limit 1
    ) from again where again.key < (select last from gate)
)

-- lock: hold the gate of a pool against other workers.
select pool from penstock.gate where pool = :pool for update;

-- turns: the state of a pool's gate, and the keys whose jobs wait there and may start, beginning after the one that had
-- the last turn. Of each it gives how many wait and run, and its token count. Keys that run as many as they may, or
-- have no token left, are passed by. The first row says when the next of these may start. Jobs that keep their turn
-- while they wait for their next attempt count as if they ran.
-- SQLite: there is no LATERAL.
with recursive {gate}, {line}, turn as (
    select k.key, (
        select count(*) from (
            {runs}
        )
    ) as running, ({begun}) as begun
    from (
        select key from ahead where key is not null union all select key from again where key <= (select last from gate)
    ) k
), free as (
    select turn.key, turn.running, turn.begun, rate.value, rate.parts, rate.moment
    from turn left join penstock.rate_limit rate
        on rate.name = 'pool:' || :pool and rate.key = turn.key and turn.key <> ''
        and (select key_rate_limit from gate) is not null
    where (turn.key = '' or turn.running < (select coalesce(key_parallelism, 1000000000) from gate))
      and (rate.open_at is null or rate.open_at <= :now or turn.begun > 0)
    limit :keys
)
select gate.key_parallelism, gate.rate_limit, gate.key_rate_limit, gate.value, gate.parts, gate.moment,
       gate.opens_at, free.key, (
           select count(*) from (
               select 1 from penstock.scheduled_job s
               where s.waiting and s.pool = :pool and s.concurrency_key = free.key and {ours} limit :room
           )
       ) as waiting, free.running, free.begun, free.value as key_value, free.parts as key_parts, free.moment as key_moment
from gate left join free on true;
-- PostgreSQL: LATERAL with a limit keeps the order of keys, whatever the planner thinks of the tables.
with recursive {gate}, {line}
select gate.key_parallelism, gate.rate_limit, gate.key_rate_limit, gate.value, gate.parts, gate.moment,
       gate.opens_at, turn.key, turn.waiting, turn.running, turn.begun, turn.value as key_value, turn.parts as key_parts,
       turn.moment as key_moment
from gate left join lateral (
    select k.key, f.running, b.begun, rate.value, rate.parts, rate.moment, (
        select count(*) from (
            select from penstock.scheduled_job s
            where s.waiting and s.pool = :pool and s.concurrency_key = k.key and {ours} limit :room
        ) few
    ) as waiting
    from (
        select key from ahead where key is not null union all select key from again where key <= gate.last
    ) k cross join lateral (
        select count(*) as running from (
            {runs}
        ) few
    ) f cross join lateral ({begun}) b (begun) left join lateral (
        select r.value, r.parts, r.moment, r.open_at from penstock.rate_limit r
        where r.name = 'pool:' || :pool and r.key = k.key and k.key <> '' and gate.key_rate_limit is not null limit 1
    ) rate on true
    where (k.key = '' or gate.key_parallelism is null or f.running < gate.key_parallelism)
      and (rate.open_at is null or rate.open_at <= :now or b.begun > 0)
    limit :keys
) turn on true;

-- start: give jobs that wait at a pool's gate to a lease, so many of each key, and remember the last key.
-- A pool whose limit was changed since the worker last looked at it gives nothing. No job of a key starts behind a due
-- job of a task that does not wait yet. Another worker may be about to let it, or too many are due at once.
-- SQLite: takes them out; started puts them in. One statement a key.
delete from penstock.scheduled_job
where id in (
    select k.id from (
        select s.id, s.rank, s.place from penstock.scheduled_job s
        where s.waiting and s.pool = :pool and s.concurrency_key = :key and {ours}
          and not exists (select 1 from penstock.cancel_request c where c.job_id = s.id)
          and exists (select 1 from penstock.lease l where l.id = :lease)
          and exists (select 1 from penstock.pool p where p.name = :pool and p.epoch = :epoch)
        order by s.rank, s.place, s.id limit :count
    ) k
    where not exists (
        select 1 from penstock.scheduled_job e
        where e.gated and not e.waiting and e.concurrency_key <> '' and e.pool = :pool and e.concurrency_key = :key
          and (e.rank, e.place, e.id) < (k.rank, k.place, k.id) and e.run_at <= :now and e.options ->> 'task' is not null
          and not exists (select 1 from penstock.cancel_request c where c.job_id = e.id)
    )
)
returning {claimed_columns}, error, rank, attempts, concurrency_key,
          case when attempt > 0 and instr(options, '"max_duration"') then attempts ->> '$[#-1].failing_since' end
              as failing_since;
-- PostgreSQL: SKIP LOCKED steps around jobs that are being changed or canceled, and one statement does it for all keys. None of
-- a key starts behind a job of a task that it steps around. It holds the pool, as `claim` does, so that a change of its
-- limit waits for it. The holder of a gate waits for no other pool.
with unchanged as materialized (
    select p.name from penstock.pool p where p.name = :pool and p.epoch = :epoch for key share of p
), allotted as materialized (
    select t.key, t.count, t.turn
    from unnest(:keys::text[], :counts::integer[]) with ordinality as t (key, count, turn)
    where exists (select from penstock.lease l where l.id = :lease)
      and exists (select from unchanged)
), due as materialized (
    select j.id, j.rank, j.place, j.number, a.key, a.turn from allotted a cross join lateral (
        select k.id, k.rank, k.place, row_number() over () as number from (
            select s.id, s.rank, s.place from penstock.scheduled_job s
            where s.waiting and s.pool = :pool and s.concurrency_key = a.key and {ours}
              and not exists (select from penstock.cancel_request c where c.job_id = s.id)
            order by s.rank, s.place, s.id limit a.count for update of s skip locked
        ) k
    ) j
), last as (
    select distinct on (key) key, rank, place, id from due where key <> '' order by key, number desc
), earlier as materialized (
    select l.key, e.rank, e.place, e.id from last l cross join lateral (
        (
            select s.rank, s.place, s.id from penstock.scheduled_job s
            where s.waiting and s.pool = :pool and s.concurrency_key = l.key
              and (s.rank, s.place, s.id) < (l.rank, l.place, l.id)
              and s.id <> all(array(select id from due)) and s.options::jsonb ->> 'task' is not null
              and not exists (select from penstock.cancel_request c where c.job_id = s.id)
            order by s.rank, s.place, s.id limit 1
        )
        union all
        (
            select s.rank, s.place, s.id from penstock.scheduled_job s
            where s.gated and not s.waiting and s.concurrency_key <> '' and s.pool = :pool and s.concurrency_key = l.key
              and (s.rank, s.place, s.id) < (l.rank, l.place, l.id) and s.run_at <= :now
              and s.options::jsonb ->> 'task' is not null
              and not exists (select from penstock.cancel_request c where c.job_id = s.id)
            order by s.rank, s.place, s.id limit 1
        )
    ) e
), taken as (
    delete from penstock.scheduled_job s using due
    where s.id = due.id and not exists (
        select from earlier e where e.key = due.key and (e.rank, e.place, e.id) < (due.rank, due.place, due.id)
    )
    returning s.id, s.pool, s.function, s.kind, s.args, s.priority, s.rank, s.concurrency_key, s.run_at, s.options,
              s.on_complete, s.attempt + 1 as attempt, s.enqueued_at, s.error, s.attempts, due.number, due.turn
), freed as (
    delete from penstock.job_key k using taken t where k.job_id = t.id and k.until_start
), turned as (
    update penstock.gate set concurrency_key = :last where pool = :pool
), started as (
    insert into penstock.running_job (id, lease, pool, function, kind, args, priority, rank, gated, concurrency_key, run_at,
        options, on_complete, attempt, enqueued_at, started_at, error, attempts)
    select id, :lease, pool, function, kind, args, priority, rank, true, concurrency_key, run_at, options, on_complete,
           attempt, enqueued_at, :now::timestamptz, error, attempts
    from taken
)
select id, function, kind, args, run_at, pool, priority, options, on_complete, null as ending, attempt, enqueued_at,
       :now as started_at, {failing_since}, concurrency_key
from taken order by number, turn;

-- started: put a job under its lease that has passed a gate. Another job may have its key, if it had that until it started.
-- SQLite: part of start.
insert into penstock.running_job (id, lease, function, kind, args, run_at, pool, priority, rank, options, on_complete,
    ending, attempt, enqueued_at, started_at, error, gated, concurrency_key, attempts)
values (:id, :lease, :function, :kind, :args, :run_at, :pool, :priority, :rank, :options, :on_complete, :ending, :attempt,
    :enqueued_at, :started_at, :error, 1, :concurrency_key, :attempts);
delete from penstock.job_key where job_id = :id and until_start;

-- turned: remember who had the last turn.
-- SQLite: part of start.
update penstock.gate set concurrency_key = :last where pool = :pool;

-- close: have ready jobs pass the gate of their pool from now on, if a rate limit was declared since.
-- SQLite: there is no DELETE in WITH.
insert into penstock.scheduled_job ({job_columns}, attempt, enqueued_at, error, attempts, gated, waiting)
select {job_columns}, attempt, enqueued_at, error, attempts, true, true
from penstock.ready_job where pool = :pool and ending is null
returning id;
delete from penstock.ready_job where pool = :pool and ending is null;
-- PostgreSQL: one statement takes them out and puts them in.
with gone as (
    delete from penstock.ready_job where pool = :pool and ending is null
    returning {job_columns}, attempt, enqueued_at, error, attempts
)
insert into penstock.scheduled_job ({job_columns}, attempt, enqueued_at, error, attempts, gated, waiting)
select {job_columns}, attempt, enqueued_at, error, attempts, true, true from gone
returning id;
