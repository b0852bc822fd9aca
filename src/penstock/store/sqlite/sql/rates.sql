-- hold: what is left of a rate limit.
-- Differs: SQLite has one writer, and needs no lock.
select value, parts, moment from penstock_rate_limit where name = :name and key = :key and :now is not null;

-- peek: what is left of a rate limit.
select value, parts, moment from penstock_rate_limit where name = :name and key = :key and parts > 0;

-- keep: keep what is left of a rate limit.
-- Differs: one statement a rate limit.
insert into penstock_rate_limit (name, key, value, parts, moment, full_at)
values (:name, :key, :value, :parts, :moment, :full_at)
on conflict (name, key) do update
set value = excluded.value, parts = excluded.parts, moment = excluded.moment, full_at = excluded.full_at;

-- forget: forget a rate limit, of which all may be taken again.
delete from penstock_rate_limit where name = :name and key = :key;

-- prune: forget rate limits that are full again.
delete from penstock_rate_limit
where (name, key) in (
    select name, key from penstock_rate_limit where full_at <= :now order by full_at limit :limit
);

-- any_full: whether a rate limit is full again (SQLite only: looking takes no lock).
select 1 from penstock_rate_limit where full_at <= :now limit 1;
