-- declared: what was declared last.
select name, declared from penstock.pool;

-- declare: make a pool known; a limit that differs from the one declared before holds from now on.
insert into penstock.pool (name, declared, max_parallelism) values (:pool, :limit::integer, :limit)
on conflict (name) do update set declared = :limit, max_parallelism = :limit, epoch = pool.epoch + 1
where pool.declared <> :limit;

-- change: change a limit, or pause a pool, for all workers at once.
update penstock.pool
set max_parallelism = coalesce(:max_parallelism::integer, max_parallelism), paused = coalesce(:paused::boolean, paused),
    epoch = epoch + 1
where name = :pool returning name;

-- look: how pools stand for a worker.
select p.name, case when p.paused then 0 else p.max_parallelism end, p.epoch, s.granted, s.mine, s.holders, s.wanted,
       (select count(*) from (
            select from penstock.ready_job r where r.pool = p.name and r.ending is null limit :most
       ) few)
from penstock.pool p cross join lateral (
    select coalesce(sum(held), 0)::integer as granted, coalesce(sum(held) filter (where lease = :lease), 0)::integer as mine,
           count(*) filter (where lease <> 0 and (held > 0 or wanted > 0)) as holders,
           coalesce(sum(wanted) filter (where lease <> :lease), 0)::integer as wanted
    from penstock.slot where pool = p.name
) s
where p.name = any(:pools::text[]) order by p.name;

-- lock: keep all others from taking slots of a pool; its limit.
-- Differs: SQLite has one writer, and needs no lock.
select case when paused then 0 else max_parallelism end from penstock.pool where name = :pool for update;

-- acquire: take as many more slots as are free, up to a number; how many are held then.
-- Differs: holds the lease, so that nobody removes it and leaves the slots behind.
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
       (select coalesce(sum(held), 0)::integer from penstock.slot s where s.pool = p.name),
       (select count(*) from penstock.ready_job j where j.pool = p.name and j.ending is null),
       (select count(*) from penstock.scheduled_job j where j.pool = p.name),
       (select count(*) from penstock.running_job j where j.pool = p.name)
from penstock.pool p order by p.name;
