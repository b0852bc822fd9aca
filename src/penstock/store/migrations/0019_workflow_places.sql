-- How far the body of a run had come as a record was stored: the place of what it had learned last.
alter table penstock.workflow_record add column learned bigint;  -- PostgreSQL
alter table penstock.workflow_record add column learned integer;  -- SQLite
