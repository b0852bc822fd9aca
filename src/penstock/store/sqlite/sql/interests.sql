-- add: make an interest known; its number.
insert into penstock_interest (name, digest, source, spec, declared_at)
values (:name, :digest, :source, :spec, :now)
on conflict (name, digest) do nothing returning id;

-- captured: note which triggers capture an interest, with their table as it is now (SQLite only: PostgreSQL does so
-- where it makes triggers).
update penstock_interest set capture = :capture, installed = :installed where id = :id;

-- uncaptured: note that these triggers capture no interest any more (SQLite only: see captured).
update penstock_interest set capture = null where capture = :capture;

-- remove: forget an interest.
delete from penstock_interest where id = :id;

-- declared: the names and digests of the interests with which tasks are declared now.
-- Unbounded: it reads all tasks.
select 'task:' || t.name, t.spec ->> 'interest' from penstock_task t where 'task:' || t.name in (select n.value from json_each(:names) n);

-- each_of: those of some tables of which each change counts.
-- Differs: the interests say so; names are compared without regard to capitals.
-- Unbounded: it reads them all.
select t.value from penstock_interest i cross join json_each(:tables) t on t.value = i.source collate nocase
where i.installed is not null and i.spec ->> 'each';

-- list: all interests, each with its table as JSON: columns and triggers.
-- Differs: SQLite has no partitions, and its triggers cannot be switched off.
-- Unbounded: it reads them all.
select i.id, i.spec, i.declared_at, i.capture, i.installed,
    (select json_object(
        'kind', case when s.sql like 'create virtual%' then 'virtual' else s.type end,
        'text', s.sql,
        'columns', (select json_group_object(c.name, c.type) from pragma_table_xinfo(s.name) c where c.hidden <> 1),
        'triggers', (select json_group_array(json_object('name', t.name)) from sqlite_schema t
            where t.type = 'trigger' and t.tbl_name = s.name collate nocase
                and t.name in (
                    '_penstock_change_' || i.capture || '_insert', '_penstock_change_' || i.capture || '_update',
                    '_penstock_change_' || i.capture || '_delete'
                )))
        from sqlite_schema s where s.name = i.source collate nocase and s.type in ('table', 'view')) as found
from penstock_interest i order by i.id;
