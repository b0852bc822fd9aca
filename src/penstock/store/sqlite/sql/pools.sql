-- declared: what was declared last.
select name, declared, key_parallelism, rate_limit, key_rate_limit, pool_group, ageing from penstock_pool;

-- declare: make a pool known; what differs from what was declared before holds from now on.
-- Differs: its gate and its rate limits come with the next ones.
insert into penstock_pool (name, declared, max_parallelism, key_parallelism, rate_limit, key_rate_limit, pool_group, ageing)
values (:pool, :limit, :limit, :key_parallelism, :rate_limit, :key_rate_limit, :pool_group, :ageing)
on conflict (name) do update
set max_parallelism = case when declared = excluded.declared then max_parallelism else excluded.declared end,
    declared = excluded.declared, key_parallelism = excluded.key_parallelism, rate_limit = excluded.rate_limit,
    key_rate_limit = excluded.key_rate_limit, pool_group = excluded.pool_group, ageing = excluded.ageing, epoch = epoch + 1;

-- reopen: look anew at what is left of the rate limits of a pool (SQLite only: part of declare).
update penstock_rate_limit set open_at = moment where name = 'pool:' || :pool and open_at > moment;

-- declare_gate: make the gate of a pool known (SQLite only: part of declare).
insert into penstock_turn (pool) values (:pool) on conflict (pool) do nothing;

-- change: change a limit, or pause a pool, for all workers at once.
-- Differs: its group comes with `changed`.
update penstock_pool
set max_parallelism = coalesce(:max_parallelism, max_parallelism), paused = coalesce(:paused, paused), epoch = epoch + 1
where name = :pool returning name, pool_group;

-- changed: let workers learn anew what holds for the other pools of a group.
update penstock_pool set epoch = epoch + 1 where pool_group = :pool_group and name <> :pool;

-- epoch: the number of a pool's limit.
select epoch from penstock_pool where name = :pool;

-- members: the pools of a group: their limits, and how many slots workers hold and want.
select p.name, case when p.paused then 0 else p.max_parallelism end, coalesce(sum(s.held), 0), coalesce(sum(s.wanted), 0)
from penstock_pool p left join penstock_slot s on s.pool = p.name
where p.pool_group = :pool_group group by p.name order by p.name;

-- look: how a pool stands for a worker. If it may lend slots, then of the jobs that wait at its gate those count that may
-- start as far as their keys go; a total runs along the line of keys until there are enough.
-- Differs: one statement a pool.
select p.name, case when p.paused then 0 else p.max_parallelism end, p.epoch,
       (select coalesce(sum(held), 0) from penstock_slot where pool = p.name),
       (select coalesce(sum(held), 0) from penstock_slot where pool = p.name and lease = :lease),
       (select count(*) from penstock_slot where pool = p.name and lease <> 0 and (held > 0 or wanted > 0)),
       (select coalesce(sum(wanted), 0) from penstock_slot where pool = p.name and lease <> :lease),
       (select count(*) from (
            select * from (select 1 from penstock_ready_job r where r.pool = p.name and r.ending is null limit :most)
            union all
            select * from (
                select 1 from penstock_scheduled_job w
                where w.waiting and w.pool = p.name and (p.key_parallelism is null or p.pool_group is null) limit :most
            )
       )) + case when p.key_parallelism is null or p.pool_group is null then 0 else (
            with recursive line (key, total) as (
                select * from (
                    select w.concurrency_key, 0 from penstock_scheduled_job w
                    where w.waiting and w.pool = p.name order by w.concurrency_key limit 1
                )
                union all
                select (
                    select w.concurrency_key from penstock_scheduled_job w
                    where w.waiting and w.pool = p.name and w.concurrency_key > line.key order by w.concurrency_key limit 1
                ), line.total + max(0, min((
                    select count(*) from (
                        select 1 from penstock_scheduled_job w
                        where w.waiting and w.pool = p.name and w.concurrency_key = line.key limit :most
                    )
                ), case when line.key = '' then :most else p.key_parallelism - (
                    select count(*) from penstock_running_job j
                    where j.gated and j.pool = p.name and j.concurrency_key = line.key and j.ending is null
                ) - (
                    select count(*) from penstock_scheduled_job k
                    where k.keeps_turn and not k.waiting and k.pool = p.name and k.concurrency_key = line.key
                ) end))
                from line where line.key is not null and line.total < :most
            )
            select coalesce(max(total), 0) from line
       ) end, p.pool_group
from penstock_pool p where p.name = :pool;

-- lock: the limit of a pool, and its group.
-- Differs: SQLite has one writer, and needs no lock.
select case when paused then 0 else max_parallelism end, pool_group, 1 from penstock_pool where name = :pool;

-- acquire: take as many more slots as are free, up to a number; how many are held then.
insert into penstock_slot (pool, lease, held, wanted)
select :pool, l.id, given.number, :count - given.number
from penstock_lease l join (
    select max(0, min(:count, :limit - coalesce(sum(held), 0))) as number from penstock_slot where pool = :pool
) given
where l.id = :lease
on conflict (pool, lease) do update set held = held + excluded.held, wanted = excluded.wanted
returning held;

-- release: give slots back, and want none; how many are held then.
update penstock_slot set held = max(0, held - :count), wanted = 0 where pool = :pool and lease = :lease returning held;

-- list: all pools, by name.
-- Unbounded: it counts jobs.
select p.name, p.declared, p.max_parallelism, p.paused,
       (select coalesce(sum(held), 0) from penstock_slot s where s.pool = p.name),
       (select count(*) from penstock_ready_job j where j.pool = p.name and j.ending is null)
           + (select count(*) from penstock_scheduled_job j where j.waiting and j.pool = p.name),
       (select count(*) from penstock_scheduled_job j where not j.waiting and j.pool = p.name),
       (select count(*) from penstock_running_job j where j.pool = p.name),
       (select count(*) from penstock_scheduled_job j where j.waiting and j.pool = p.name),
       p.key_parallelism, p.rate_limit, p.key_rate_limit, p.pool_group, p.ageing
from penstock_pool p order by p.name;

-- waiting: the keys whose jobs wait at the gate of a pool, in order: of each, how many wait and how many run.
with recursive line (key) as (
    select * from (select s.concurrency_key from penstock_scheduled_job s
     where s.waiting and s.pool = :pool order by s.concurrency_key limit 1)
    union all
    select (
        select s.concurrency_key from penstock_scheduled_job s
        where s.waiting and s.pool = :pool and s.concurrency_key > line.key order by s.concurrency_key limit 1
    ) from line where line.key is not null
)
select line.key, (
    select count(*) from (
        select 1 from penstock_scheduled_job s
        where s.waiting and s.pool = :pool and s.concurrency_key = line.key limit :most
    )
), (
    select count(*) from (
        select 1 from penstock_running_job j
        where j.gated and j.pool = :pool and j.concurrency_key = line.key and j.ending is null limit :most
    )
)
from line where line.key is not null limit :keys;

-- backlog: how much work of each pool waits, at its gate too, and of the jobs without one; of many it counts only some.
-- Unbounded: it counts jobs.
-- Differs: no lateral join, so it reads the ready jobs twice.
select p.name, p.max_parallelism, p.granted,
       (select count(*) from (
            select 1 from penstock_ready_job r where r.pool = p.name and r.ending is null
            order by r.rank, r.seq limit :most
       )) + (select count(*) from (
            select 1 from penstock_scheduled_job w where w.pool = p.name and w.waiting
            order by w.concurrency_key, w.rank, w.place, w.id limit :most
       )),
       (select min(few.run_at) from (
            select * from (
                select r.run_at from penstock_ready_job r where r.pool = p.name and r.ending is null
                order by r.rank, r.seq limit :most
            )
            union all
            select * from (
                select w.run_at from penstock_scheduled_job w where w.pool = p.name and w.waiting
                order by w.concurrency_key, w.rank, w.place, w.id limit :most
            )
       ) few),
       coalesce(later.number, 0)
from (
    select l.name, case when l.paused then 0 else l.max_parallelism end as max_parallelism,
           (select coalesce(sum(s.held), 0) from penstock_slot s where s.pool = l.name) as granted
    from penstock_pool l
    union all select 'default', null, 0
) p left join (
    select few.pool, count(*) as number from (
        select s.pool from penstock_scheduled_job s where s.ending is null and not s.waiting
        order by s.run_at, s.id limit :most
    ) few
    group by few.pool
) later on later.pool = p.name
order by p.name;

-- activity: what goes on in each pool, the one without a limit too: how many jobs stand in each place, and since when the
-- first of them; and how many have ended since a time.
-- Unbounded: it counts jobs.
select pool, 'ready', count(*), min(run_at) from (
    select pool, run_at from penstock_ready_job where ending is null
    union all select pool, run_at from penstock_scheduled_job where waiting
) due group by pool
union all
select pool, 'completing', count(*), min(run_at) from penstock_ready_job where ending is not null group by pool
union all
select pool, 'scheduled', count(*), min(run_at) from penstock_scheduled_job where not waiting group by pool
union all
select pool, 'running', count(*), min(started_at) from penstock_running_job group by pool
union all
select pool, state, count(*), min(finished_at) from penstock_finished_job where finished_at >= :since group by pool, state;
