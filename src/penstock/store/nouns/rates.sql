-- hold: lock a rate limit; its token count.
-- SQLite: there is one writer.
select value, parts, moment from penstock.rate_limit where name = :name and key = :key;
-- PostgreSQL: a new one is written with zero parts, and others as they are. If they were only read, they would count as read
-- in a serializable transaction, together with their neighbours in the index.
insert into penstock.rate_limit as r (name, key, value, parts, moment, open_at, full_at)
values (:name, :key, 0, 0, :now::timestamptz, :now, :now)
on conflict (name, key) do update set value = r.value returning value, parts, moment;

-- peek: the token count of a rate limit.
select value, parts, moment from penstock.rate_limit where name = :name and key = :key and parts > 0;

-- keep: store the token counts of rate limits.
insert into penstock.rate_limit (name, key, value, parts, moment, open_at, full_at)
select * from unnest(:name::text[], :key::text[], :value::bigint[], :parts::bigint[], :moment::timestamptz[],
    :open_at::timestamptz[], :full_at::timestamptz[])
on conflict (name, key) do update
set value = excluded.value, parts = excluded.parts, moment = excluded.moment, open_at = excluded.open_at,
    full_at = excluded.full_at;

-- forget: forget a rate limit that is full again.
delete from penstock.rate_limit where name = :name and key = :key;

-- prune: forget rate limits that are full again, but for rows that others have locked.
delete from penstock.rate_limit where full_at <= :now and (name, key) in (
    with gone as materialized (
        select name, key from penstock.rate_limit where full_at <= :now order by full_at limit :limit for update skip locked
    ) select name, key from gone
);

-- any_old: whether a rate limit is full again.
-- SQLite: looking takes no lock.
select 1 from penstock.rate_limit where full_at <= :now limit 1;
