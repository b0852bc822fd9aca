-- {declared}: a pool as it is declared again; a limit that was changed since stays, unless another one is declared.
max_parallelism = case when p.declared = excluded.declared then p.max_parallelism else excluded.declared end,
declared = excluded.declared, key_parallelism = excluded.key_parallelism, rate_limit = excluded.rate_limit,
key_rate_limit = excluded.key_rate_limit, pool_group = excluded.pool_group, ageing = excluded.ageing, epoch = p.epoch + 1

-- {limit}: the limit of a pool that holds now.
case when p.paused then 0 else p.max_parallelism end as max_parallelism

-- {startable}: of a pool that may lend slots, how many of the jobs at its gate may start as far as their keys go. A
-- total runs along the line of keys until there are enough.
case when p.key_parallelism is null or p.pool_group is null then 0 else (
    with recursive line (key, total) as (
        select * from (
            select w.concurrency_key, 0::bigint from penstock.scheduled_job w
            where w.waiting and w.pool = p.name order by w.concurrency_key limit 1
        ) first
        union all
        select (
            select w.concurrency_key from penstock.scheduled_job w
            where w.waiting and w.pool = p.name and w.concurrency_key > line.key order by w.concurrency_key limit 1
        ), line.total + greatest(0, least((
            select count(*) from (
                select from penstock.scheduled_job w
                where w.waiting and w.pool = p.name and w.concurrency_key = line.key and {ours} limit :most
            ) few
        ), case when line.key = '' then :most else p.key_parallelism - (
            select count(*) from penstock.running_job j
            where j.gated and j.pool = p.name and j.concurrency_key = line.key and j.ending is null
        ) - (
            select count(*) from penstock.scheduled_job k
            where k.blocks_key and not k.waiting and k.pool = p.name and k.concurrency_key = line.key
        ) end))
        from line where line.key is not null and line.total < :most
    )
    select coalesce(max(total), 0) from line
) end

-- {limited}: pools with their limits and the slots that workers hold, and the jobs without a pool.
(
    select l.name, case when l.paused then 0 else l.max_parallelism end as max_parallelism,
           (select coalesce(sum(s.held), 0)::integer from penstock.slot s where s.pool = l.name) as granted
    from penstock.pool l
    union all select 'default', null, 0
)

-- {scheduled}: how many jobs of each pool start later; of many it counts only some.
(
    select few.pool, count(*) as number from (
        select s.pool from penstock.scheduled_job s where s.ending is null and not s.waiting
        order by s.run_at, s.id limit :most
    ) few
    group by few.pool
)

-- {oldest}: since when the oldest ready job of a pool is due, as far as its first ones tell.
(select min(few.run_at) from (
    select * from (
        select r.run_at from penstock.ready_job r where r.pool = p.name and r.ending is null
        order by r.rank, r.seq limit :first
    ) first
    union all
    select * from (
        select w.run_at from penstock.scheduled_job w where w.pool = p.name and w.waiting
        order by w.concurrency_key, w.rank, w.place, w.id limit :first
    ) gated
) few)

-- declared: what was declared last.
select name, declared, key_parallelism, rate_limit, key_rate_limit, pool_group, ageing from penstock.pool;

-- declare: store a pool, and its gate. Values that differ from the declaration before hold from now on, and the counts
-- of its rate limits are read again.
-- SQLite: there is no INSERT in WITH.
insert into penstock.pool as p (name, declared, max_parallelism, key_parallelism, rate_limit, key_rate_limit, pool_group, ageing)
values (:name, :declared, :declared, :key_parallelism, :rate_limit, :key_rate_limit, :pool_group, :ageing)
on conflict (name) do update set {declared};
insert into penstock.gate (pool) values (:name) on conflict (pool) do nothing;
update penstock.rate_limit set open_at = moment where name = 'pool:' || :name and open_at > moment;
-- PostgreSQL: one statement for all, which waits for claims that began before it.
with held as materialized (
    select name from penstock.pool where name = :name for update
), gate as (
    insert into penstock.gate (pool) values (:name) on conflict (pool) do nothing
), rates as (
    update penstock.rate_limit set open_at = moment where name = 'pool:' || :name::text and open_at > moment
)
insert into penstock.pool as p (name, declared, max_parallelism, key_parallelism, rate_limit, key_rate_limit, pool_group, ageing)
select :name, :declared::integer, :declared, :key_parallelism::integer, :rate_limit::text, :key_rate_limit::text,
    :pool_group::text, :ageing::bigint
from (select count(*) from held) counted
on conflict (name) do update set {declared};

-- change: change a limit, or pause a pool, for all workers at once; the others of its group learn again what holds.
-- SQLite: there is no UPDATE in WITH.
update penstock.pool
set max_parallelism = coalesce(:max_parallelism, max_parallelism), paused = coalesce(:paused, paused), epoch = epoch + 1
where name = :pool returning name;
update penstock.pool set epoch = epoch + 1
where name <> :pool and pool_group = (select o.pool_group from penstock.pool o where o.name = :pool);
-- PostgreSQL: one statement for the pool and its group, which locks them in the order in which all do.
with locked as materialized (
    select p.name from penstock.pool p
    where p.name = :pool or p.pool_group = (select o.pool_group from penstock.pool o where o.name = :pool)
    order by p.name for update
), changed as (
    update penstock.pool
    set max_parallelism = coalesce(:max_parallelism::integer, max_parallelism), paused = coalesce(:paused::boolean, paused),
        epoch = epoch + 1
    where name = :pool and (select count(*) from locked) > 0 returning name, pool_group
), others as (
    update penstock.pool p set epoch = p.epoch + 1 from changed c where p.pool_group = c.pool_group and p.name <> c.name
)
select name from changed;

-- changed: let workers read the limits of the other pools of a group again.
-- SQLite: there is one writer.
update penstock.pool set epoch = epoch + 1 where pool_group = :pool_group and name <> :pool;
-- PostgreSQL: locks them in the order in which all do.
with locked as materialized (
    select name from penstock.pool where pool_group = :pool_group order by name for update
)
update penstock.pool set epoch = epoch + 1
where pool_group = :pool_group and name <> :pool and (select count(*) from locked) > 0;

-- epoch: the number of a pool's limit.
select epoch from penstock.pool where name = :pool;

-- members: the pools of a group: their limits, and how many slots workers hold and want.
select p.name, case when p.paused then 0 else p.max_parallelism end as "limit", coalesce(sum(s.held), 0)::integer as granted,
       coalesce(sum(s.wanted), 0)::integer as wanted
from penstock.pool p left join penstock.slot s on s.pool = p.name
where p.pool_group = :pool_group group by p.name order by p.name;

-- look: how pools stand for a worker.
-- SQLite: there is no lateral join.
select p.name as pool, {limit}, p.epoch,
       (select coalesce(sum(held), 0) from penstock.slot where pool = p.name) as granted,
       (select coalesce(sum(held), 0) from penstock.slot where pool = p.name and lease = :lease) as held,
       (select count(*) from penstock.slot where pool = p.name and lease <> 0 and (held > 0 or wanted > 0)) as holders,
       (select coalesce(sum(wanted), 0) from penstock.slot where pool = p.name and lease <> :lease) as wanted,
       (select count(*) from (
            select * from (
                select 1 from penstock.ready_job r where r.pool = p.name and r.ending is null and {ours} limit :most
            )
            union all
            select * from (
                select 1 from penstock.scheduled_job w
                where w.waiting and w.pool = p.name and (p.key_parallelism is null or p.pool_group is null) and {ours}
                limit :most
            )
       )) + {startable} as waiting, p.pool_group
from json_each(:pools) asked cross join penstock.pool p on p.name = asked.value order by p.name;
-- PostgreSQL: ready jobs count after a place in each pool (see heads.py).
select p.name as pool, {limit}, p.epoch, s.granted, s.held, s.holders, s.wanted,
       (select count(*) from (
            (select from penstock.ready_job r
             where r.pool = p.name and r.ending is null and (r.rank, r.seq) > (asked.rank, asked.seq) and {ours}
             limit :most)
            union all
            (select from penstock.scheduled_job w
             where w.waiting and w.pool = p.name and (p.key_parallelism is null or p.pool_group is null) and {ours}
             limit :most)
       ) few) + {startable} as waiting, p.pool_group
from unnest(:pools::text[], :after_ranks::bigint[], :after_seqs::bigint[]) as asked (pool, rank, seq)
join penstock.pool p on p.name = asked.pool cross join lateral (
    select coalesce(sum(held), 0)::integer as granted, coalesce(sum(held) filter (where lease = :lease), 0)::integer as held,
           count(*) filter (where lease <> 0 and (held > 0 or wanted > 0)) as holders,
           coalesce(sum(wanted) filter (where lease <> :lease), 0)::integer as wanted
    from penstock.slot where pool = p.name
) s
order by p.name;

-- lock: keep all others from taking slots of a pool, and of those of its group; its limit and its group. Claims may go on.
select {limit}, p.pool_group, p.name = :pool as is_it
from penstock.pool p
where p.name = :pool or p.pool_group = (select o.pool_group from penstock.pool o where o.name = :pool)
order by p.name for no key update;

-- acquire: take as many more slots as are free, up to a number; how many are held then. The lease is held, so that
-- nobody removes it and leaves the slots behind.
insert into penstock.slot as s (pool, lease, held, wanted)
select :pool, l.id, given.number, :count::integer - given.number
from penstock.lease l cross join (
    select greatest(0, least(:count, :limit::integer - coalesce(sum(held), 0)::integer)) as number
    from penstock.slot where pool = :pool
) given
where l.id = :lease for key share of l
on conflict (pool, lease) do update set held = s.held + excluded.held, wanted = excluded.wanted
returning held;

-- release: give slots back, and want none; how many are held then.
update penstock.slot set held = greatest(0, held - :count::integer), wanted = 0
where pool = :pool and lease = :lease returning held;

-- list: all pools, by name.
-- Unbounded: it counts jobs.
select p.name, p.declared, p.max_parallelism, p.paused,
       (select coalesce(sum(held), 0)::integer from penstock.slot s where s.pool = p.name) as granted,
       (select count(*) from penstock.ready_job j where j.pool = p.name and j.ending is null)
           + (select count(*) from penstock.scheduled_job j where j.waiting and j.pool = p.name) as ready,
       (select count(*) from penstock.scheduled_job j where not j.waiting and j.pool = p.name) as scheduled,
       (select count(*) from penstock.running_job j where j.pool = p.name) as running,
       (select count(*) from penstock.scheduled_job j where j.waiting and j.pool = p.name) as waiting,
       p.key_parallelism, p.rate_limit, p.key_rate_limit, p.pool_group, p.ageing
from penstock.pool p order by p.name;

-- now: all pools, and the jobs without one, as `list` has them, and since when the first ready job is due. Of many jobs
-- it counts only some, and those whose on_complete is still to run as ready.
select p.name, coalesce(l.declared, 0) as declared, coalesce(l.max_parallelism, 0) as max_parallelism, l.paused, p.granted, (
           select count(*) from (
               select 1 from penstock.ready_job r where r.pool = p.name and r.ending is null limit :most
           ) few
       ) + (
           select count(*) from (
               select 1 from penstock.ready_job e where e.ending is not null and e.pool = p.name limit :most
           ) few
       ) + waiting.number as ready, coalesce(later.number, 0) as scheduled,
       (select count(*) from penstock.running_job j where j.pool = p.name) as running, waiting.number as waiting,
       l.key_parallelism, l.rate_limit, l.key_rate_limit, l.pool_group, l.ageing, {oldest} as oldest
from {limited} p
left join penstock.pool l on l.name = p.name
left join {scheduled} later on later.pool = p.name
join (
    select g.name, (
        select count(*) from (select 1 from penstock.scheduled_job w where w.waiting and w.pool = g.name limit :most) few
    ) as number from {limited} g
) waiting on waiting.name = p.name
order by p.name;

-- waiting: the keys whose jobs wait at the gate of a pool, in order: of each, how many wait and how many run.
with recursive line (key) as (
    select * from (
        select s.concurrency_key from penstock.scheduled_job s
        where s.waiting and s.pool = :pool order by s.concurrency_key limit 1
    ) first
    union all
    select (
        select s.concurrency_key from penstock.scheduled_job s
        where s.waiting and s.pool = :pool and s.concurrency_key > line.key order by s.concurrency_key limit 1
    ) from line where line.key is not null
)
select line.key, (
    select count(*) from (
        select from penstock.scheduled_job s
        where s.waiting and s.pool = :pool and s.concurrency_key = line.key limit :most
    ) few
) as waiting, (
    select count(*) from (
        select from penstock.running_job j
        where j.gated and j.pool = :pool and j.concurrency_key = line.key and j.ending is null limit :most
    ) few
) as running
from line where line.key is not null limit :keys;

-- backlog: the waiting work of each pool, at its gate too, and of the jobs without one; of many it counts only some.
-- Unbounded: it counts jobs.
select p.name as pool, p.max_parallelism, p.granted,
       (select count(*) from (
            select 1 from penstock.ready_job r where r.pool = p.name and r.ending is null
            order by r.rank, r.seq limit :most
       ) few) + (select count(*) from (
            select 1 from penstock.scheduled_job w where w.pool = p.name and w.waiting
            order by w.concurrency_key, w.rank, w.place, w.id limit :most
       ) few) as ready,
       {oldest} as oldest, coalesce(later.number, 0) as scheduled
from {limited} p left join {scheduled} later on later.pool = p.name
order by p.name;

-- oldest: the jobs that have run longest, and those ready or at a gate that have waited longest, at most so many of each.
-- Unbounded: it sorts jobs.
select * from (
    select 'running' as place, id, function, pool, started_at as since from penstock.running_job order by started_at limit :most
) running
union all
select * from (
    select 'ready', id, function, pool, run_at from (
        select id, function, pool, run_at from penstock.ready_job where ending is null
        union all
        select id, function, pool, run_at from penstock.scheduled_job where ending is null and waiting
    ) either
    order by run_at limit :most
) ready;
