-- ping: whether the database answers.
select 1;

-- pin: take the snapshot of a transaction now.
-- SQLite: PostgreSQL's begins with the first statement, which waits for no one.
select 1 from sqlite_schema limit 1;

-- version: a number that changes when others commit.
-- SQLite: PostgreSQL tells of it by notify.
pragma data_version;

-- time: the database's clock.
-- PostgreSQL: all processes on SQLite are on one machine, and share its clock.
select clock_timestamp();

-- notify: tell the services of all processes that there is work.
-- PostgreSQL: on SQLite they look at the file's version.
select pg_notify(:channel, '');

-- watched: the tables that live queries read.
-- PostgreSQL: on SQLite they look at the file's version.
select distinct i.spec::jsonb ->> 'table' from penstock.interest i join penstock.demanded d on d.interest = i.id;

-- fed: how much was written to the change feed, whether or not it has committed.
-- PostgreSQL: on SQLite they look at the file's version.
select pg_sequence_last_value('penstock.change_seq'::regclass);

-- identity: this database, on this running server.
-- PostgreSQL: a file is known by its path.
select oid, pg_postmaster_start_time() from pg_database where datname = current_database();
