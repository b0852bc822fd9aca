-- tables: each named table or view as JSON: columns, indexes, and CHECKs or its text.
-- SQLite: CHECKs are only in the text; names are compared without regard to capitals.
select asked.value as asked, s.name, '' as schema, s.type as kind,
    (select json_group_array(json_object(
        'name', c.name, 'type', c.type, 'nullable', not c."notnull", 'filled', c.dflt_value is not null,
        'generated', c.hidden in (2, 3), 'key', c.pk))
        from pragma_table_xinfo(s.name) c where c.hidden <> 1) as columns,
    (select json_group_array(json_object(
        'name', i.name, 'unique', i."unique", 'origin', i.origin, 'extra', iif(i.partial, 'where', ''),
        'columns', (select json_group_array(json_object('name', x.name, 'descending', x."desc"))
            from pragma_index_xinfo(i.name) x where x.key)))
        from pragma_index_list(s.name) i) as indexes,
    coalesce(s.sql, '') as text,
    (select json_group_object(a.name, a.sql) from sqlite_schema a
        where a.tbl_name = s.name collate nocase and a.type in ('index', 'trigger') and a.sql is not null) as attached
from json_each(:names) asked
join sqlite_schema s on s.name = asked.value collate nocase and s.type in ('table', 'view');
-- PostgreSQL: SQLite gives the text of the table instead of its CHECKs, and the text of its indexes and triggers.
select asked.name as asked, c.relname as name, n.nspname as schema,
    case when c.relkind in ('r', 'p') then 'table' when c.relkind in ('v', 'm') then 'view'
        when c.relkind = 'f' then 'foreign table' when c.relkind = 'S' then 'sequence' else 'relation' end as kind,
    (select jsonb_agg(jsonb_build_object(
        'name', a.attname,
        'type', format_type(a.atttypid, a.atttypmod)
            || case when a.attcollation <> t.typcollation then ' collate ' || quote_ident(l.collname) else '' end,
        'plain', format_type(a.atttypid, -1),
        'base', case when t.oid < 16384 and t.typelem = 0 then format_type(t.oid, -1) else (
            with recursive below (oid, dimensions) as (
                select t.oid, 0 union all
                select case o.typtype when 'd' then o.typbasetype else o.typelem end,
                    o.dimensions + (o.typtype <> 'd')::integer
                from (select b.dimensions, o.*, i.typarray = o.oid as is_array from below b
                    join pg_type o on o.oid = b.oid left join pg_type i on i.oid = o.typelem) o
                where o.typtype = 'd' or o.is_array)
            select case when o.typtype = 'e' then 'enum'
                when o.typtype = 'c' or b.dimensions > 1 or o.typname in ('int2vector', 'oidvector') or exists (select from pg_cast s where s.castsource = o.oid
                    and s.casttarget = 'json'::regtype and s.castmethod = 'f') then 'composite'
                else format_type(o.oid, -1) end || case when b.dimensions > 0 then '[]' else '' end
            from below b join pg_type o on o.oid = b.oid
            where o.typtype <> 'd' and not exists (
                select from pg_type i where i.oid = o.typelem and i.typarray = o.oid)) end,
        'nullable', not a.attnotnull, 'filled', a.atthasdef or a.attidentity <> '', 'generated', a.attgenerated <> '',
        'key', coalesce(array_position(p.indkey::smallint[], a.attnum) + 1, 0)) order by a.attnum)
        from pg_attribute a
        join pg_type t on t.oid = a.atttypid
        left join pg_collation l on l.oid = a.attcollation
        left join pg_index p on p.indrelid = c.oid and p.indisprimary
        where a.attrelid = c.oid and a.attnum > 0 and not a.attisdropped) as columns,
    (select jsonb_agg(jsonb_build_object(
        'name', ic.relname, 'unique', i.indisunique, 'valid', i.indisvalid and i.indisready,
        'origin', case when i.indisprimary then 'pk' else 'c' end,
        'extra', concat_ws(' ', nullif(m.amname, 'btree'), 'where ' || pg_get_expr(i.indpred, i.indrelid),
            case when i.indnatts > i.indnkeyatts then 'include' end,
            case when to_jsonb(i) ->> 'indnullsnotdistinct' = 'true' then 'nulls not distinct' end),
        'columns', (select jsonb_agg(jsonb_build_object(
            'name', a.attname, 'expression', pg_get_indexdef(i.indexrelid, k, false),
            'collated', i.indcollation[k - 1] <> coalesce(a.attcollation, 0),
            'descending', (i.indoption[k - 1] & 1) <> 0, 'nulls_first', (i.indoption[k - 1] & 2) <> 0) order by k)
            from generate_series(1, i.indnkeyatts::integer) k
            left join pg_attribute a on a.attrelid = c.oid and a.attnum = i.indkey[k - 1] and a.attnum > 0)))
        from pg_index i
        join pg_class ic on ic.oid = i.indexrelid
        join pg_am m on m.oid = ic.relam
        where i.indrelid = c.oid) as indexes,
    (select jsonb_agg(jsonb_build_object(
        'name', k.conname, 'expression', pg_get_expr(k.conbin, k.conrelid), 'valid', k.convalidated))
        from pg_constraint k where k.conrelid = c.oid and k.contype = 'c') as checks
from unnest(:names::text[]) asked (name)
join pg_class c on c.oid = to_regclass(asked.name)
join pg_namespace n on n.oid = c.relnamespace;

-- kept: tables with the columns that penstock adds to each, where names are looked for.
-- SQLite:
select s.name from sqlite_schema s where s.type = 'table'
and 2 = (select count(*) from pragma_table_info(s.name) c where c.name in ('id', 'creation_time'));
-- PostgreSQL: the catalog lists the columns of all schemas.
select c.relname from pg_class c
join pg_attribute a on a.attrelid = c.oid and a.attname in ('id', 'creation_time') and not a.attisdropped
where c.relkind in ('r', 'p') and pg_table_is_visible(c.oid) group by c.oid, c.relname having count(*) = 2;

-- has_migrations: whether any of penstock's own migrations was ever applied.
-- SQLite: each database has its own list of its tables.
select count(*) > 0 from sqlite_schema where type = 'table' and name = 'penstock.migration';
-- PostgreSQL:
select to_regclass('penstock.migration') is not null;

-- migrations: names of penstock's own migrations that are applied.
select name from penstock.migration;

-- record_migration: remember that a migration is applied.
-- SQLite: the column has no default.
insert into penstock.migration (name, applied_at) values (:name, strftime('%Y-%m-%dT%H:%M:%f', 'now') || '000Z');
-- PostgreSQL:
insert into penstock.migration (name) values (:name);
