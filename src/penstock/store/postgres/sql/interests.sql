-- add: make an interest known; its number.
insert into penstock.interest (name, digest, source, spec, declared_at)
values (:name, :digest, :source, :spec, :now)
on conflict (name, digest) do nothing returning id;

-- add_for_trial: the same in a transaction that is undone, without using up a number (PostgreSQL only: SQLite gives it back).
insert into penstock.interest (id, name, digest, source, spec, declared_at) overriding system value
values (0, :name, :digest, :source, :spec, :now)
on conflict (name, digest) do nothing returning id;

-- installed: remember the triggers of an interest, and the columns that they read, as they are now.
update penstock.interest set installed = :installed where id = :id;

-- hold: keep an interest from being dropped until the transaction ends (PostgreSQL only: SQLite has one writer).
select id from penstock.interest where id = :id for update;

-- remove: forget an interest.
delete from penstock.interest where id = :id;

-- list: all interests, or one, with what is there of each, as JSON: its table, triggers, columns and partitions.
-- A name with a schema is looked up in the catalog, as `to_regclass` raises where a role may not use the schema.
-- Differs: SQLite has no partitions, and its triggers cannot be switched off.
-- Unbounded: it reads them all.
select i.id, i.spec, i.declared_at, i.installed,
    (select jsonb_build_object(
        'kind', c.relkind,
        'each', 'each_' || md5((pg_identify_object('pg_class'::regclass, c.oid, 0)).identity),
        'alone', c.relkind = 'r' and not c.relispartition,
        'heirs', c.relkind = 'r' and exists (select from pg_inherits h where h.inhparent = c.oid),
        'columns', (select jsonb_object_agg(a.attname, format_type(a.atttypid, a.atttypmod)) from pg_attribute a
            where a.attrelid = c.oid and a.attnum > 0 and not a.attisdropped),
        'partitions', (select jsonb_agg(p.relid::text order by p.relid::text)
            from pg_partition_tree(c.oid) p where p.level > 0),
        'triggers', (select jsonb_agg(jsonb_build_object(
                'name', t.tgname, 'table', t.tgrelid::regclass::text, 'enabled', t.tgenabled,
                'sql', pg_get_triggerdef(t.oid), 'here', t.tgrelid = c.oid) order by t.tgrelid, t.tgname)
            from pg_trigger t join pg_proc f on f.oid = t.tgfoid join pg_namespace n on n.oid = f.pronamespace
            where n.nspname = 'penstock' and t.tgparentid = 0
                and f.proname in (
                    'change_' || i.id || '_insert', 'change_' || i.id || '_update', 'change_' || i.id || '_delete',
                    'change_' || i.id || '_truncate'
                )),
        'bodies', (select jsonb_object_agg(f.proname, md5(f.prosrc)) from pg_proc f join pg_namespace n on n.oid = f.pronamespace
            where n.nspname = 'penstock' and f.proname in (
                'change_' || i.id || '_insert', 'change_' || i.id || '_update', 'change_' || i.id || '_delete',
                'change_' || i.id || '_truncate'
            )))
        from parse_ident(i.source) as p (named) join pg_class c on c.oid = case
            when cardinality(p.named) = 1 then to_regclass(i.source)
            else (select q.oid from pg_class q join pg_namespace s on s.oid = q.relnamespace
                where s.nspname = p.named[cardinality(p.named) - 1]::name
                    and q.relname = p.named[cardinality(p.named)]::name) end) as found
from penstock.interest i where :id::integer is null or i.id = :id order by i.id;

-- declared: what tasks are declared with now: the names and the digests of their interests.
-- Unbounded: it reads all tasks.
select 'task:' || t.name, t.spec::jsonb ->> 'interest' from penstock.task t where 'task:' || t.name = any(:names::text[]);

-- each_of: those of some tables of which each change counts: there is a function that says so.
-- Differs: it is named by the table as the catalog knows it, so that one table is one, however programs spell it.
select t.name from unnest(:tables::text[]) as t (name)
where to_regprocedure('penstock.each_' || md5((pg_identify_object('pg_class'::regclass, to_regclass(t.name), 0)).identity) || '()') is not null;

-- path: the schemas in which names are looked for, as SQL (PostgreSQL only: SQLite has no schemas).
select coalesce(string_agg(quote_ident(s.name), ', ' order by s.place), '')
from unnest(current_schemas(false)) with ordinality s (name, place) where s.name <> 'pg_catalog';
