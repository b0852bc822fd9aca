-- Migration files of programs, and the index of failed jobs.

-- A row is a migration file of the program that was begun on this database. `penstock migration run` inserts and updates it,
-- `penstock migration down` deletes it. `progress` is JSON: the step, its finished statements, and the cursor of its backfill.
create table if not exists penstock.migration_file (
    name text primary key,
    progress text not null
);
