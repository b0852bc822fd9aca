-- list: the migration files that were begun, in order.
-- Unbounded: it reads them all.
select name, progress from penstock.migration_file order by name;

-- begin: note that a migration file was begun, unless it is noted already.
insert into penstock.migration_file (name, progress) values (:name, :progress) on conflict (name) do nothing;

-- advance: note the progress of a migration file, unless another process has noted other progress.
update penstock.migration_file set progress = :after where name = :name and progress = :before returning name;

-- forget: a migration file was undone.
delete from penstock.migration_file where name = :name and progress = :before returning name;
