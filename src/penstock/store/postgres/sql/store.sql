-- ping: whether the database answers.
select 1;

-- time: the database's clock (PostgreSQL only: all processes on SQLite are on one machine, and share its clock).
select clock_timestamp();

-- notify: tell the services of all processes that there is work (PostgreSQL only: on SQLite they look at the file's version).
select pg_notify(:channel, '');
