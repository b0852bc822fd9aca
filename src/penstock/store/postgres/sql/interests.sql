-- add: make an interest known; its number.
insert into penstock.interest (name, digest, source, spec, declared_at)
values (:name, :digest, :source, :spec, :now)
on conflict (name, digest) do nothing returning id;

-- add_for_trial: the same in a transaction that is undone, without using up a number (PostgreSQL only: SQLite gives it back).
insert into penstock.interest (id, name, digest, source, spec, declared_at) overriding system value
values (:id, :name, :digest, :source, :spec, :now)
on conflict (name, digest) do nothing returning id;

-- remove: forget an interest.
delete from penstock.interest where id = :id;

-- list: all interests, each with its table as JSON: columns, triggers and partitions.
-- Differs: SQLite has no partitions, and its triggers cannot be switched off.
-- Unbounded: it reads them all.
select i.id, i.spec, i.declared_at, i.capture, i.installed, f.found
from penstock.interest i join penstock.interest_found f on f.id = i.id order by i.id;

-- declared: the names and digests of the interests with which tasks are declared now.
-- Unbounded: it reads all tasks.
select 'task:' || t.name, t.spec::jsonb ->> 'interest' from penstock.task t where 'task:' || t.name = any(:names::text[]);

-- each_of: those of some tables of which each change counts: a function marks each.
-- Differs: it is named by the table as the catalog knows it, so that one table is one, however programs spell it.
select t.name from unnest(:tables::text[]) as t (name)
where to_regprocedure('penstock.each_' || md5((pg_identify_object('pg_class'::regclass, to_regclass(t.name), 0)).identity) || '()') is not null;

-- path: the schemas in which names are looked for, as SQL (PostgreSQL only: SQLite has no schemas).
select coalesce(string_agg(quote_ident(s.name), ', ' order by s.place), '')
from unnest(current_schemas(false)) with ordinality s (name, place) where s.name <> 'pg_catalog';
