-- The declarations of programs, by which two programs on one database notice that they clash.

-- A row is a thing that a program declares: a pool, a cron, a function. `program` is the name of the app; '' stands for all
-- programs without one. `spec` tells one declaration from another. Backends that start insert and update it, and workers
-- read it; it stays until `penstock forget` deletes it.
create table if not exists penstock.declaration (
    noun text not null,
    name text collate "C" not null,
    program text collate "C" not null,
    spec text not null,
    primary key (noun, name, program)
);  -- PostgreSQL
) strict, without rowid;  -- SQLite
