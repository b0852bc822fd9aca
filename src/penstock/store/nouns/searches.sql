-- list: all search indexes, with their backfills.
select id, name, digest, interest, cursor from penstock.search order by id;

-- add: add a search index, unless it is there.
insert into penstock.search (name, digest, cursor) values (:name, :digest, '') on conflict (name, digest) do nothing returning id;

-- find: a search index with the position of its reader, NULL where there is none.
-- SQLite: it plans each statement once.
select s.id, s.name, s.digest, s.interest, s.cursor, r.position
from penstock.search s left join penstock.change_reader r on r.name = :reader || s.id
where s.name = :name and s.digest = :digest;
-- PostgreSQL: the statement that follows is planned for its own words: rare and frequent ones need different plans.
select s.id, s.name, s.digest, s.interest, s.cursor, r.position,
    set_config('plan_cache_mode', 'force_custom_plan', true) as planned
from penstock.search s left join penstock.change_reader r on r.name = :reader || s.id
where s.name = :name and s.digest = :digest;

-- advance: move the place of a backfill, if it is where it was.
update penstock.search set cursor = :after where id = :id and cursor = :before returning id;

-- capture: note the interest that captures the changes, and have all rows indexed again; nothing if it is known.
update penstock.search set interest = :interest, cursor = ''
where id = :id and (interest is null or interest <> :interest) returning id;

-- restart: have all rows indexed again.
update penstock.search set cursor = '' where id = :id;

-- remove: forget a search index.
delete from penstock.search where id = :id;
