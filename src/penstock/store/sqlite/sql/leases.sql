-- take: a new lease.
insert into penstock_lease (worker, started_at, expires_at) values (:worker, :now, :expires_at) returning id;

-- renew: extend a lease that has not been taken away.
update penstock_lease set expires_at = :expires_at where id = :lease returning id;

-- expiry: when a lease ends (SQLite only: to extend it while the database cannot be written).
select expires_at from penstock_lease where id = :lease;

-- give_back: end a lease under which no job runs any more.
-- Differs: its slots go with it by a statement of its own.
delete from penstock_lease where id = :lease and not exists (select 1 from penstock_running_job where lease = :lease);

-- remove_slots: delete the slots of a lease that is gone (SQLite only: part of give_back and remove).
delete from penstock_slot
where lease = :lease and not exists (select 1 from penstock_lease l where l.id = penstock_slot.lease);

-- expired: leases that have run out, and leases that are gone while jobs still run under them.
select id from penstock_lease where expires_at <= :now
union
select distinct lease from penstock_running_job r where not exists (select 1 from penstock_lease l where l.id = r.lease);

-- lock_expired: whether a lease has run out.
-- Differs: SQLite has one writer, and needs no lock.
select id, expires_at <= :now as expired from penstock_lease where id = :lease;

-- running: the jobs that run under a lease.
select id, function, kind, args, run_at, pool, priority, options, on_complete, ending, attempt, enqueued_at,
       started_at,
       case when attempt > 1 and instr(options, '"max_duration"') then attempts ->> '$[#-1].failing_since' end,
       marked
from penstock_running_job where lease = :lease order by id;

-- remove: delete a lease.
-- Differs: its slots go with it by a statement of its own.
delete from penstock_lease where id = :lease;

-- list: all leases, oldest first, and how many jobs run under each.
-- Unbounded: it counts jobs.
select l.id, l.worker, l.started_at, l.expires_at,
       (select count(*) from penstock_running_job j where j.lease = l.id)
from penstock_lease l where l.id > 0 order by l.id;
