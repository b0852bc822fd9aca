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

-- {timeline}: the timeline on which a primary writes.
('x' || left(pg_walfile_name(pg_current_wal_flush_lsn()), 8))::bit(32)::integer

-- cluster: whether this server is a standby, its database, and the timeline that it is known to follow.
-- PostgreSQL: a file has no replicas.
select pg_is_in_recovery(), s.system_identifier, (select oid from pg_database where datname = current_database()),
    case when pg_is_in_recovery() then greatest(c.timeline_id, r.min_recovery_end_timeline) else {timeline} end
from pg_control_system() s, pg_control_checkpoint() c, pg_control_recovery() r;

-- flushed: the place in the log up to which all is durable, and its timeline; before all if nobody writes here.
-- PostgreSQL: a file has no replicas.
select case when pg_is_in_recovery() then -1 else (pg_current_wal_flush_lsn() - '0/0')::bigint end,
    case when pg_is_in_recovery() then 0 else {timeline} end;

-- inserted: a place in the log that covers all that a snapshot shows, durable or not; behind all if nobody writes here.
-- PostgreSQL: a file has no replicas.
select case when pg_is_in_recovery() then 9223372036854775807 else (pg_current_wal_insert_lsn() - '0/0')::bigint end;

-- place: the place up to which a standby has replayed the log; nothing if this is none.
-- PostgreSQL: a file has no replicas.
select (pg_last_wal_replay_lsn() - '0/0')::bigint;

-- replayed: whether this is a standby, the place up to which it has replayed the log, the first unknown transaction,
-- and older unfinished ones. They are of so many after a snapshot, and of those open in it. A status is asked after the
-- snapshot of this statement was taken, so transactions that have one are known.
-- PostgreSQL: a file has no replicas.
with known as materialized (select pg_snapshot_xmax(pg_current_snapshot())::text::bigint as last)
select pg_is_in_recovery(), (pg_last_wal_replay_lsn() - '0/0')::bigint, last, case when last - :seen_end <= 100000 then
    array(select xid from (
        select unnest(:seen_open::bigint[]) union all select generate_series(:seen_end::bigint, last - 1)
    ) asked (xid) where case when xid < last then pg_xact_status(xid::text::xid8) = 'in progress' else true end)
end from known;

-- shown: whether this is a standby, and the transaction before which all come that a snapshot shows.
-- PostgreSQL: a file has no replicas.
select pg_is_in_recovery(), pg_snapshot_xmax(pg_current_snapshot())::text::bigint;
