-- take: a new lease.
insert into penstock.lease (holder, started_at, expires_at, scope) values (:holder, :now, :expires_at, :scope) returning id;

-- renew: extend a lease that has not been taken away.
update penstock.lease set expires_at = :expires_at, holder = coalesce(:holder, holder) where id = :lease returning id;

-- expiry: when a lease ends.
-- SQLite: to extend it while the database cannot be written.
select expires_at from penstock.lease where id = :lease;

-- give_back: end a lease under which no job runs any more, and its slots.
-- SQLite: there is no DELETE in WITH.
delete from penstock.lease where id = :lease and not exists (select 1 from penstock.running_job where lease = :lease);
delete from penstock.slot where lease = :lease and not exists (select 1 from penstock.lease where id = :lease);
-- PostgreSQL: one statement for both.
with gone as (
    delete from penstock.lease l
    where l.id = :lease and not exists (select from penstock.running_job where lease = :lease)
    returning l.id
)
delete from penstock.slot s using gone where s.lease = gone.id;

-- expired: leases that have run out, and leases that are gone while jobs still run under them.
select id from penstock.lease where expires_at <= :now
union
select distinct lease from penstock.running_job r where not exists (select from penstock.lease l where l.id = r.lease);

-- lock_expired: hold an expired lease against other rescuers; its owner can no longer renew it.
select id, expires_at <= :now as expired from penstock.lease where id = :lease for update;

-- running: the jobs that run under a lease, without the ones that a transaction is about to settle; it may never end.
select {claimed_columns}, started_at, {failing_since}, marked
from penstock.running_job where lease = :lease order by id for update skip locked;

-- remove: delete a lease and its slots.
-- SQLite: there is no DELETE in WITH.
delete from penstock.lease where id = :lease;
delete from penstock.slot where lease = :lease;
-- PostgreSQL: one statement for both.
with slots as (delete from penstock.slot where lease = :lease)
delete from penstock.lease where id = :lease;

-- list: all leases, oldest first, and how many jobs run under each.
-- Unbounded: it counts jobs.
select l.id as lease, l.holder, l.started_at, l.expires_at, l.scope,
       (select count(*) from penstock.running_job j where j.lease = l.id) as running
from penstock.lease l where l.id > 0 order by l.id;
