-- The table of each interest as JSON: its columns, partitions, and the triggers of its capture with their functions.
-- `each`: the function that marks a table of which each change counts. `heirs`: whether other tables inherit from it.
-- `plain`: rows are inserted through no other table. `ordered`: no trigger of others changes inserted rows before the
-- statement ends; penstock's own, in whichever schema, never do.
-- A name with a schema is looked up in the catalog, as `to_regclass` raises where a role may not use the schema.
create or replace view penstock.interest_found as
select i.id, (select jsonb_build_object(
        'kind', c.relkind,
        'each', 'each_' || md5((pg_identify_object('pg_class'::regclass, c.oid, 0)).identity),
        'plain', c.relkind = 'r' and not c.relispartition,
        'ordered', not exists (select from pg_trigger t join pg_proc f on f.oid = t.tgfoid
            where t.tgrelid = c.oid and not t.tgisinternal and t.tgtype & 71 = 5 -- after insert, for each row
                and not exists (select from pg_class v where v.relnamespace = f.pronamespace and v.relname = 'interest_found')),
        'heirs', c.relkind = 'r' and exists (select from pg_inherits h where h.inhparent = c.oid),
        'columns', (select jsonb_object_agg(a.attname, concat(
                format_type(coalesce(nullif(y.typbasetype, 0), y.oid),
                    case y.typtype when 'd' then y.typtypmod else a.atttypmod end),
                case a.attgenerated when 'v' then ' virtual' end))
            from pg_attribute a join pg_type y on y.oid = a.atttypid
            where a.attrelid = c.oid and a.attnum > 0 and not a.attisdropped),
        'partitions', (select jsonb_agg(p.relid::text order by p.relid::text)
            from pg_partition_tree(c.oid) p where p.level > 0),
        'triggers', (select jsonb_agg(jsonb_build_object(
                'name', t.tgname, 'table', t.tgrelid::regclass::text, 'enabled', t.tgenabled, 'here', t.tgrelid = c.oid)
                order by t.tgrelid, t.tgname)
            from pg_trigger t where t.tgparentid = 0 and t.tgfoid = any(own.oids)),
        'bodies', (select jsonb_object_agg(f.proname, hashtextextended(f.prosrc, 0)) from pg_proc f where f.oid = any(own.oids)))
    from parse_ident(i.source) as p (named) join pg_class c on c.oid = case
        when cardinality(p.named) = 1 then to_regclass(i.source)
        else (select q.oid from pg_class q join pg_namespace s on s.oid = q.relnamespace
            where s.nspname = p.named[cardinality(p.named) - 1]::name
                and q.relname = p.named[cardinality(p.named)]::name) end) as found
from penstock.interest i cross join lateral (
    select array_agg(f.oid) as oids from pg_proc f where f.pronamespace = 'penstock'::regnamespace and f.proname = any(array(
        select 'change_' || i.capture || '_' || event from unnest('{insert,update,delete,truncate}'::text[]) event
    ))
) own;
