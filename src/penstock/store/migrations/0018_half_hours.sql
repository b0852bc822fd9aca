-- Numbers of functions, pools, tasks and outboxes by the half hour, and an index of retrying jobs.

-- A row adds up rows of `meter`: how much of something happened in the half hour that began at `at`. The processes that
-- write the logbook, and the pruner, move rows of `meter` here that are older than 90 minutes, and delete old ones. Charts
-- read it.
create table if not exists penstock.meter_half_hour (
    at timestamptz not null,
    name text collate "C" not null,
    part text collate "C" not null,
    number double precision not null,
    primary key (name, at, part)
);  -- PostgreSQL
) strict, without rowid;  -- SQLite
create index if not exists meter_half_hour_at on penstock.meter_half_hour (at);

-- Retrying jobs are few among the scheduled ones, and people ask for them.
create index if not exists scheduled_job_retrying on penstock.scheduled_job (id) where attempts is not null;
