-- add: make an interest known; its number.
insert into penstock.interest (name, digest, source, spec, declared_at)
values (:name, :digest, :source, :spec, :now)
on conflict (name, digest) do nothing returning id;

-- captured: note which triggers capture an interest, with their table as it is now.
-- SQLite: PostgreSQL does so where it makes triggers.
update penstock.interest set capture = :capture, installed = :installed where id = :id;

-- uncaptured: note that these triggers capture no interest any more.
-- SQLite: PostgreSQL does so where it makes triggers.
update penstock.interest set capture = null where capture = :capture;

-- add_for_trial: the same in a transaction that is undone, without using up a number.
-- PostgreSQL: SQLite gives the number back.
insert into penstock.interest (id, name, digest, source, spec, declared_at) overriding system value
values (:id, :name, :digest, :source, :spec, :now)
on conflict (name, digest) do nothing returning id;

-- remove: forget an interest.
delete from penstock.interest where id = :id;

-- list: all interests, each with its table as JSON: columns, triggers and partitions.
-- Unbounded: it reads them all.
-- SQLite: it has no partitions, and its triggers cannot be switched off. Interests that are on another table by now
-- name it.
select i.id, i.spec as interest, i.declared_at, i.capture, i.installed,
    (select json_object(
        'kind', case when s.sql like 'create virtual%' then 'virtual' else s.type end,
        'text', s.sql,
        'columns', (select json_group_object(c.name, c.type) from pragma_table_xinfo(s.name) c where c.hidden <> 1),
        'triggers', (select json_group_array(json_object(
                'name', t.name, 'table', iif(t.tbl_name = s.name collate nocase, null, t.tbl_name))) from sqlite_schema t
            where t.type = 'trigger' and t.name in (
                '_penstock_change_' || i.capture || '_insert', '_penstock_change_' || i.capture || '_update',
                '_penstock_change_' || i.capture || '_delete'
            )))
        from sqlite_schema s where s.name = i.source collate nocase and s.type in ('table', 'view')) as found
from penstock.interest i order by i.id;
-- PostgreSQL: a view of what is there.
select i.id, i.spec as interest, i.declared_at, i.capture, i.installed, f.found::text as found
from penstock.interest i join penstock.interest_found f on f.id = i.id order by i.id;

-- schemas: those in which programs have penstock's tables.
-- SQLite: the names of tables begin with them.
select found.schema from (
    select substr(name, 1, length(name) - 9) as schema from sqlite_schema where type = 'table' and name like '%\_interest' escape '\'
) found join sqlite_schema s on s.name = found.schema || '_change_reader';
-- PostgreSQL: a role that may not use a schema sees it in the catalog, and shall learn of it if it is the program's own.
select s.nspname from pg_class c join pg_namespace s on s.oid = c.relnamespace
where c.relname = 'interest_found' and (s.nspname = 'penstock' or has_schema_privilege(s.oid, 'usage'));

-- declared: the names and digests of the interests with which tasks are declared now.
-- Unbounded: it reads all tasks.
select 'task:' || t.name as name, t.spec::jsonb ->> 'interest' as digest from penstock.task t
where 'task:' || t.name = any(:names::text[]);

-- each_of: the tables, of some, whose every change counts.
-- Unbounded: it reads them all.
-- SQLite: the interests say so. Names are compared without regard to capitals.
select t.value as source from penstock.interest i cross join json_each(:tables) t on t.value = i.source collate nocase
where i.installed is not null and i.spec ->> 'each';
-- PostgreSQL: a function says so. It is named by the table as the catalog knows it, so that one table is one, however
-- programs spell it.
select t.name as source from unnest(:tables::text[]) as t (name)
where to_regprocedure('penstock.each_' || md5((pg_identify_object('pg_class'::regclass, to_regclass(t.name), 0)).identity) || '()') is not null;

-- path: the schemas in which names are looked for, as SQL.
-- PostgreSQL: on SQLite there are no schemas.
select coalesce(string_agg(quote_ident(s.name), ', ' order by s.place), '')
from unnest(current_schemas(false)) with ordinality s (name, place) where s.name <> 'pg_catalog';
