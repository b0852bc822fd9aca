-- add: add numbers to those of a minute.
insert into penstock.meter as m (at, name, part, number)
select :at::timestamptz, t.* from unnest(:name::text[], :part::text[], :number::float[]) as t
on conflict (at, name, part) do update set number = m.number + excluded.number;

-- log: keep log events. One may be there already, if the answer to its commit was lost.
insert into penstock.log_event (id, at, level, name, function, words, facts)
select * from unnest(:id::uuid[], :at::timestamptz[], :level::integer[], :name::text[], :function::text[], :words::text[],
    :facts::text[])
on conflict (id) do nothing;

-- {since}: the rows of all minutes and half hours that began at a time or later.
(
    select * from penstock.meter where at >= :since
    union all select at, name, part, number from penstock.meter_half_hour where at >= :since
) m

-- sums: the numbers since a time, but for totals.
-- Unbounded: it reads all of them.
select name, part, sum(number) as number from {since} where name <> 'calls' and name <> 'jobs' group by name, part;

-- series: the numbers of one name since a time.
-- Unbounded: it reads all minutes.
select at, part, number from {since} where name = :name order by at;

-- is_sampled: whether a process has looked at the queues in this minute.
select exists (select from penstock.meter where at = :at::timestamptz and name = 'jobs' and part = 'samples');

-- events: log events, newest first, those below one id.
-- Unbounded: of events that are rare it reads all.
select id, at, level, name, function, words, facts from penstock.log_event
where id < :below and level >= :level and substr(name, 1, length(:event::text)) = :event
    and strpos(function, :function::text) > 0
    and exists (select from unnest(:words::text[]) w (word) where strpos(words, word) > 0)
    and strpos(facts, :spelled::text) > 0
    and (:text::text = '' or strpos(coalesce(facts::jsonb ->> 'error', ''), :text) > 0
        or strpos(coalesce(facts::jsonb ->> 'message', ''), :text) > 0)
order by id desc limit :limit;

-- excess: the last minute, and the last half hour, beyond the numbers that are kept; null if there is none.
-- Unbounded: it counts them.
select (select at from penstock.meter order by at desc limit 1 offset :most) as minute,
    (select at from penstock.meter_half_hour order by at desc limit 1 offset :most_half_hours) as half_hour;

-- oldest_minute: the first minute that has numbers.
select at from penstock.meter order by at limit 1;

-- move: add the numbers of some minutes to those of their half hour.
-- SQLite: there is one writer.
insert into penstock.meter_half_hour as m (at, name, part, number)
select :since, name, part, sum(number) from penstock.meter where at >= :since and at < :until group by name, part
on conflict (name, at, part) do update set number = m.number + excluded.number;
delete from penstock.meter where at >= :since and at < :until;
-- PostgreSQL: of two processes that move a row one finds it gone, and adds nothing.
with gone as (
    delete from penstock.meter where at >= :since::timestamptz and at < :until returning name, part, number
)
insert into penstock.meter_half_hour as m (at, name, part, number)
select :since, name, part, sum(number) from gone group by name, part order by name, part
on conflict (name, at, part) do update set number = m.number + excluded.number;

-- forget_numbers: forget the numbers of old half hours.
delete from penstock.meter_half_hour where at <= :until;

-- stale: ids of log events that are too old or too many, of all or of one function. Of its slow runs the slowest stay.
-- Unbounded: it reads all.
select id from (
    select id, at, level, name, row_number() over (order by id desc) as place,
        row_number() over (
            partition by function, case when level = 1 then name end
            order by case when name = 'function.slow' then (facts::jsonb ->> 'all')::float end desc, id desc
        ) as own_place
    from penstock.log_event
) e
where at <= :before or (level = 1 and name = 'function.slow' and at <= :slow_before) or place > :most
    or own_place > case when level = 1 then :runs::bigint else :of_one end limit :limit;

-- forget: forget log events.
delete from penstock.log_event where id = any(:id::uuid[]);
