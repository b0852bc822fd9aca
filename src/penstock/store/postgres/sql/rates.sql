-- hold: hold a rate limit against others; what is left of it. Of a new one the value is below zero parts.
-- It is written like that because what is only read would count as read in a serializable transaction, together with all
-- others beside it in the index.
insert into penstock.rate_limit as r (name, key, value, parts, moment, full_at)
values (:name, :key, 0, 0, :now::timestamptz, :now)
on conflict (name, key) do update set value = r.value returning value, parts, moment;

-- peek: what is left of a rate limit.
select value, parts, moment from penstock.rate_limit where name = :name and key = :key and parts > 0;

-- keep: keep what is left of rate limits.
-- Differs: one statement for any number of them.
insert into penstock.rate_limit (name, key, value, parts, moment, full_at)
select * from unnest(:names::text[], :keys::text[], :numbers::bigint[], :parts::bigint[], :moments::timestamptz[],
    :full_ats::timestamptz[])
on conflict (name, key) do update
set value = excluded.value, parts = excluded.parts, moment = excluded.moment, full_at = excluded.full_at;

-- forget: forget a rate limit, of which all may be taken again.
delete from penstock.rate_limit where name = :name and key = :key;

-- prune: forget rate limits that are full again.
with full_again as materialized (
    select name, key from penstock.rate_limit where full_at <= :now order by full_at limit :limit for update skip locked
)
delete from penstock.rate_limit r using full_again f where r.name = f.name and r.key = f.key and r.full_at <= :now;
