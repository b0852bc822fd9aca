-- ping: whether the database answers.
select 1;

-- time: the database's clock (PostgreSQL only: all processes on SQLite are on one machine, and share its clock).
select clock_timestamp();

-- notify: tell the services of all processes that there is work (PostgreSQL only: on SQLite they look at the file's version).
select pg_notify(:channel, '');

-- fed: how much was written to the change feed, whether or not it has committed (PostgreSQL only: as notify).
select pg_sequence_last_value('penstock.change_seq'::regclass);

-- identity: which database of which running server this is (PostgreSQL only: a file is known by its path).
select oid, pg_postmaster_start_time() from pg_database where datname = current_database();
