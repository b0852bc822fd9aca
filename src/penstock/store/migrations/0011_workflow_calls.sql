-- When the body made the call of a record, for people who look at the run.
alter table penstock.workflow_record add column made_at timestamptz;  -- PostgreSQL
alter table penstock.workflow_record add column made_at text;  -- SQLite
