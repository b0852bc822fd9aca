-- add: add numbers to those of a minute.
insert into penstock.meter as m (at, name, part, number)
select :at::timestamptz, t.* from unnest(:name::text[], :part::text[], :number::float[]) as t
on conflict (at, name, part) do update set number = m.number + excluded.number;

-- log: keep log events. One may be there already, if the answer to its commit was lost.
insert into penstock.log_event (id, at, level, name, function, words, facts)
select * from unnest(:id::uuid[], :at::timestamptz[], :level::integer[], :name::text[], :function::text[], :words::text[],
    :facts::text[])
on conflict (id) do nothing;

-- sums: the numbers of all minutes since a time.
-- Unbounded: it reads all of them.
select name, part, sum(number) as number from penstock.meter where at >= :since group by name, part;

-- events: log events, newest first, those below one id.
-- Unbounded: of events that are rare it reads all.
select id, at, level, name, function, words, facts from penstock.log_event
where id < :below and level >= :level and substr(name, 1, length(:event::text)) = :event
    and strpos(function, :function::text) > 0
    and exists (select from unnest(:words::text[]) w (word) where strpos(words, word) > 0)
order by id desc limit :limit;

-- last_minute: the last minute whose numbers are too old or too many.
-- Unbounded: it counts them.
select greatest(:before::timestamptz, coalesce(
    (select at from penstock.meter order by at desc limit 1 offset :most), :before
));

-- forget_numbers: forget the numbers of old minutes.
delete from penstock.meter where at <= :until;

-- stale: ids of log events that are too old or too many, of all or of one function.
-- Unbounded: it reads all.
select id from (
    select id, at, level, function, row_number() over (order by id desc) as place,
        row_number() over (partition by function, level = 1 order by id desc) as own_place
    from penstock.log_event
) e
where at <= :before or place > :most or own_place > case when level = 1 then :runs::bigint else :of_one end limit :limit;

-- forget: forget log events.
delete from penstock.log_event where id = any(:id::uuid[]);
