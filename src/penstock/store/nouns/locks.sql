-- {lock}: a lock.
key, fence, attempt, holder, taken_at, expires_at, wanted

-- take: take a lock that is free, or has run out.
-- SQLite: there is one writer, and a row that takes the place of another one gets a new number.
insert or replace into penstock.lock (key, attempt, holder, taken_at, expires_at)
select :key, :attempt, :holder, :now, :expires_at
where not exists (select 1 from penstock.lock where key = :key and expires_at > :now)
returning {lock};
-- PostgreSQL: all requests for this key wait for each other before the number is drawn, so that no earlier holder has a
-- greater one. A request that finds the lock held draws none.
with alone as materialized (select pg_advisory_xact_lock(hashtextextended('penstock.lock/' || :key, 0)))
insert into penstock.lock as l (key, attempt, holder, taken_at, expires_at)
select :key::text, :attempt::uuid, :holder, :now::timestamptz, :expires_at::timestamptz from alone
where not exists (select from penstock.lock where key = :key and expires_at > :now)
on conflict (key) do update
set fence = default, attempt = excluded.attempt, holder = excluded.holder, taken_at = excluded.taken_at,
    expires_at = excluded.expires_at, wanted = false
where l.expires_at <= :now
returning {lock};

-- find: the holder of a lock.
select {lock} from penstock.lock where key = :key;

-- want: note that somebody waits for a lock; nothing if it has another holder by now, or none.
update penstock.lock set wanted = true where key = :key and fence = :fence returning fence;

-- renew: let a lock run out later, if it still has this holder.
update penstock.lock set expires_at = :expires_at where key = :key and fence = :fence returning fence;

-- release: give a lock back, if it still has this holder.
delete from penstock.lock where key = :key and fence = :fence returning {lock};

-- withdraw: give a lock back that was taken, and whose taker has not heard of it.
delete from penstock.lock where key = :key and attempt = :attempt returning {lock};

-- check: whether a lock is held under a number; nobody takes it over before the transaction ends, but its holder can renew
-- it.
select fence from penstock.lock where key = :key and fence = :fence for key share;

-- list: locks that are held or have run out, the oldest first.
-- Unbounded: it reads all locks.
select {lock} from penstock.lock order by taken_at, fence limit :limit;

-- prune: forget locks that nobody has given back, some time after they ran out, but for rows that others have locked.
-- Unbounded: it reads all locks.
delete from penstock.lock where expires_at <= :now and fence in (
    with gone as materialized (select fence from penstock.lock where expires_at <= :now limit :limit for update skip locked)
    select fence from gone
);

-- any_old: whether there are such locks.
-- Unbounded: it reads all locks.
-- SQLite: looking takes no lock.
select 1 from penstock.lock where expires_at <= :now limit 1;
