-- tables: each named table or view as JSON: columns, indexes, and CHECKs.
-- Differs: SQLite gives the text of the table instead of its CHECKs, and the text of its indexes and triggers.
select asked.name as asked, c.relname as name, n.nspname as schema,
    case when c.relkind in ('r', 'p') then 'table' when c.relkind in ('v', 'm') then 'view'
        when c.relkind = 'f' then 'foreign table' when c.relkind = 'S' then 'sequence' else 'relation' end as kind,
    (select jsonb_agg(jsonb_build_object(
        'name', a.attname,
        'type', format_type(a.atttypid, a.atttypmod)
            || case when a.attcollation <> t.typcollation then ' collate ' || quote_ident(l.collname) else '' end,
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

-- has_migrations: whether any of penstock's own migrations was ever applied.
select to_regclass('penstock.migration') is not null;

-- migrations: names of penstock's own migrations that are applied.
select name from penstock.migration;

-- record_migration: remember that a migration is applied.
insert into penstock.migration (name) values (:name);
