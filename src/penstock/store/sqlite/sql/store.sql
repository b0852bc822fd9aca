-- ping: whether the database answers.
select 1;

-- pin: take the snapshot of a transaction now (SQLite only: PostgreSQL's begins with the first statement, which waits for no one).
select 1 from sqlite_schema limit 1;

-- version: a number that changes when others commit (SQLite only: PostgreSQL tells of it by notify).
pragma data_version;
