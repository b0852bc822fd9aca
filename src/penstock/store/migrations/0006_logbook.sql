-- The logbook: what the functions of all processes did, and what they logged.

-- A row is how much of something happened in the minute that began at `at`, such as runs of a function that failed, or
-- seconds that it took. Every process that runs functions adds to it every few seconds, and deletes old rows; so does the
-- pruner.
create table if not exists penstock.meter (
    at timestamptz not null,
    name text collate "C" not null,
    part text collate "C" not null,
    number double precision not null,
    primary key (at, name, part)
);  -- PostgreSQL
) strict, without rowid;  -- SQLite

-- A row is a log event, or with the level 1 a run of a function. `words` are the names and ids by which it is found, and
-- `facts` is a JSON object. The same processes insert and delete it.
create table if not exists penstock.log_event (
    id uuid primary key,
    at timestamptz not null,
    level integer not null,
    name text not null,
    function text not null,
    words text not null,
    facts text not null
);
