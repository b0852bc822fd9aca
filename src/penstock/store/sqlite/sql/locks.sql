-- take: take a lock that is free, or has run out.
-- Differs: SQLite has one writer, and gives a row that takes the place of another one a new number.
insert or replace into penstock_lock (key, attempt, holder, taken_at, expires_at)
select :key, :attempt, :holder, :now, :expires_at
where not exists (select 1 from penstock_lock where key = :key and expires_at > :now)
returning key, fence, attempt, holder, taken_at, expires_at, wanted;

-- find: whose a lock is.
select key, fence, attempt, holder, taken_at, expires_at, wanted from penstock_lock where key = :key;

-- want: say that somebody waits for a lock; nothing if it has another holder by now, or none.
update penstock_lock set wanted = 1 where key = :key and fence = :fence returning fence;

-- renew: let a lock run out later, if it still has this holder.
update penstock_lock set expires_at = :expires_at where key = :key and fence = :fence returning fence;

-- release: give a lock back, if it still has this holder.
delete from penstock_lock where key = :key and fence = :fence returning key, fence, attempt, holder, taken_at, expires_at, wanted;

-- withdraw: give a lock back that was taken, and whose taker has not heard of it.
delete from penstock_lock where key = :key and attempt = :attempt returning key, fence, attempt, holder, taken_at, expires_at, wanted;

-- check: whether a lock is held under a number.
-- Differs: SQLite has one writer, and needs no lock.
select fence from penstock_lock where key = :key and fence = :fence;

-- list: locks that are held or have run out, those that were taken first before others.
-- Unbounded: it reads all locks.
select key, fence, attempt, holder, taken_at, expires_at, wanted from penstock_lock order by taken_at, fence limit :limit;

-- prune: forget locks that nobody has given back, some time after they ran out.
-- Unbounded: it reads all locks.
delete from penstock_lock where fence in (select fence from penstock_lock where expires_at <= :before limit :limit);

-- any_old: whether there are such locks (SQLite only: looking takes no lock).
-- Unbounded: it reads all locks.
select 1 from penstock_lock where expires_at <= :before limit 1;
