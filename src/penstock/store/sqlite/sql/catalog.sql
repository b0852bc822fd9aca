-- tables: each named table or view as JSON: columns, indexes, and its text.
-- Differs: CHECKs are only in the text; names are compared without regard to capitals.
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

-- has_migrations: whether any of penstock's own migrations was ever applied.
select count(*) > 0 from sqlite_schema where type = 'table' and name = 'penstock_migration';

-- migrations: names of penstock's own migrations that are applied.
select name from penstock_migration;

-- record_migration: remember that a migration is applied.
insert into penstock_migration (name, applied_at) values (:name, strftime('%Y-%m-%dT%H:%M:%f', 'now') || '000Z');
