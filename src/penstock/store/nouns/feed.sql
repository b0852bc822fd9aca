-- moment: the end of the feed: a snapshot, and the greatest number given.
-- SQLite: there are no snapshots, and numbers say it all.
select null as snapshot, coalesce((select seq from sqlite_sequence where name = 'penstock.change'), 0) as high;
-- PostgreSQL: the snapshot of this statement.
select pg_current_snapshot()::text as snapshot, coalesce(pg_sequence_last_value('penstock.change_seq'::regclass), 0) as high;

-- hold_room: keep the feed from being emptied until the transaction ends.
-- PostgreSQL: on SQLite there is one writer.
select slot from penstock.change_slot for share;
