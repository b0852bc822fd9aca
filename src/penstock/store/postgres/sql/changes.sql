-- register: add a reader, unless there is one of its name.
insert into penstock.change_reader (name, position, registered_at, moved_at) values (:name, :position, :now, :now)
on conflict (name) do nothing returning name;

-- place: move a reader to a position, and end its lease.
update penstock.change_reader set position = :position, lease = null, moved_at = :now where name = :name returning name;

-- moment: the end of the feed: the snapshot of this statement, and the greatest number given.
-- Differs: SQLite has no snapshots, and its numbers say it all.
select pg_current_snapshot()::text, (select last_value from penstock.change_seq);

-- hold_room: keep the feed from being emptied until the transaction ends (PostgreSQL only: SQLite has one writer).
select slot from penstock.change_slot for share;

-- take: read under a lease, if no living lease has the reader. Each lease that takes it raises the fence, which is a time
-- if it can be: so it also rises in a database that was restored.
update penstock.change_reader r set lease = :lease, fence = case when lease = :lease then fence
    else greatest(fence + 1, (extract(epoch from clock_timestamp()) * 1000)::bigint) end
where name = :name and (lease is null or lease = :lease or not exists (select from penstock.lease l where l.id = r.lease))
returning position;

-- leave: read no more under a lease.
update penstock.change_reader set lease = null where name = :name and lease = :lease;

-- begin: the first of a new batch: unread changes that the snapshot of this statement shows. Each row tells the snapshot.
-- Differs: on SQLite the order of commits is that of numbers.
-- There are two ranges of the index, and nothing between them is looked at.
with moment as materialized (select pg_current_snapshot()::text as snapshot)
select m.snapshot, c.seq, c.interests, c.kinds, c.key, c.before, c.after, c.changed_at
from moment m left join lateral (
    select * from (
        select seq, interests, kinds, key, before, after, changed_at from penstock.change
        where xid >= :seen_end
          and (:interests::integer[] is null or string_to_array(interests, ',') && :interests::integer[]::text[])
        union all
        select seq, interests, kinds, key, before, after, changed_at from penstock.change
        where xid = any(:seen_open::bigint[])
          and (:interests is null or string_to_array(interests, ',') && :interests::integer[]::text[])
    ) unread order by seq limit :limit
) c on true
order by c.seq;

-- begin_far: the same for a reader so far behind that `begin` takes too long. It reads in the order of numbers,
-- passing over seen changes, of which the slowest reader keeps few (PostgreSQL only: see begin).
with moment as materialized (select pg_current_snapshot()::text as snapshot)
select m.snapshot, c.seq, c.interests, c.kinds, c.key, c.before, c.after, c.changed_at
from moment m left join lateral (
    select seq, interests, kinds, key, before, after, changed_at from penstock.change
    where (xid + 0 >= :seen_end or xid + 0 = any(:seen_open::bigint[]))
      and (:interests::integer[] is null or string_to_array(interests, ',') && :interests::integer[]::text[])
    order by seq limit :limit
) c on true
order by c.seq;

-- go_on: the next of a batch that is under way, by the snapshot it began with (PostgreSQL only: see begin).
-- The index of xid, which `+ 0` hides, would lead to all of the batch again for each piece.
select seq, interests, kinds, key, before, after, changed_at from penstock.change
where seq > :last
  and (xid + 0 >= :seen_end or xid + 0 = any(:seen_open::bigint[]))
  and xid + 0 < :batch_end and xid + 0 <> all(:batch_open::bigint[])
  and (:interests::integer[] is null or string_to_array(interests, ',') && :interests::integer[]::text[])
order by seq limit :limit;

-- move: move a reader on, if it is under this lease and where it was.
update penstock.change_reader set position = :after, moved_at = :now
where name = :name and lease = :lease and position = :before
returning name;

-- readers: all readers by name.
select name, position, lease, registered_at, moved_at from penstock.change_reader order by name;

-- lag: how much is unread, up to a number, and when the oldest of it was written.
-- Differs: see begin.
select count(*), min(changed_at) from (
    select changed_at from (
        select seq, xid, changed_at from penstock.change
        where xid >= :seen_end
          and (:interests::integer[] is null or string_to_array(interests, ',') && :interests::integer[]::text[])
        union all
        select seq, xid, changed_at from penstock.change
        where xid = any(:seen_open::bigint[])
          and (:interests is null or string_to_array(interests, ',') && :interests::integer[]::text[])
    ) unread where seq > :last or xid >= :batch_end or xid = any(:batch_open::bigint[]) limit :most
) counted;

-- unread: the keys of rows with unread changes.
-- Differs: see begin.
select key from (
    select seq, xid, key from penstock.change
    where xid >= :seen_end and :interest::integer::text = any(string_to_array(interests, ','))
    union all
    select seq, xid, key from penstock.change
    where xid = any(:seen_open::bigint[]) and :interest::integer::text = any(string_to_array(interests, ','))
) unread where (seq > :last or xid >= :batch_end or xid = any(:batch_open::bigint[]))
limit :limit;

-- first_since: the lowest transaction that has written at a time or later, and the greatest number given.
-- Differs: see begin.
-- Unbounded: it reads all that is kept.
select coalesce((select min(xid) from penstock.change where changed_at >= :moment),
    pg_snapshot_xmin(pg_current_snapshot())::text::bigint), (select last_value from penstock.change_seq);

-- forget: drop a reader.
delete from penstock.change_reader where name = :name returning name;

-- slots: into which slot changes are written, since when, how many bytes each holds, and how long outboxes keep theirs.
-- Differs: SQLite has no slots. (PostgreSQL only: SQLite deletes.)
select s.slot, s.since, array(select pg_relation_size(('penstock.change_' || n)::regclass) from generate_series(0, 3) n),
       coalesce((select max(keep_for) from penstock.outbox), '0')
from penstock.change_slot s;

-- size: how many bytes the feed takes, with its indexes.
-- Differs: SQLite does not tell how large its tables are.
select sum(pg_total_relation_size(('penstock.change_' || n)::regclass))::bigint from generate_series(0, 3) n;

-- lock_room: keep readers from being registered until the transaction ends (PostgreSQL only: see hold_room).
select slot from penstock.change_slot for update;

-- turn: write changes into another slot from now on (PostgreSQL only: see slots).
update penstock.change_slot set slot = :slot, since = :now where slot = :current returning slot;

-- oldest: for how many seconds the oldest transaction has been open, if this user may see those of others.
-- (PostgreSQL only: SQLite does not tell.)
select case when pg_has_role('pg_read_all_stats', 'usage') then greatest(0, extract(epoch from clock_timestamp() - least(
    (select min(a.xact_start) from pg_stat_activity a
        where a.datname = current_database() and a.pid <> pg_backend_pid() and a.backend_type = 'client backend'),
    (select min(p.prepared) from pg_prepared_xacts p where p.database = current_database())
)))::double precision end;

-- origin: of which server the feed was, and of which it is now (PostgreSQL only: SQLite's numbers move with the file).
select s.origin, penstock.origin() from penstock.change_slot s;

-- settle_in: say of which server the feed is (PostgreSQL only: see origin).
update penstock.change_slot set origin = penstock.origin();

-- lock_readers: hold all readers (PostgreSQL only: see origin).
select name, position from penstock.change_reader order by name for update;

-- settle_changes: give changes numbers of transactions that fit another server. Changes that no reader can have been
-- handed count as written now. All others move below that server's numbers (PostgreSQL only: see origin).
-- Unbounded: it writes them all.
update penstock.change
set xid = case when seq > :high then pg_current_xact_id()::text::bigint else xid - :era::bigint end;

-- settle_reader: move a reader along with its changes, and end its lease (PostgreSQL only: see origin).
update penstock.change_reader set position = :position, lease = null where name = :name;

-- settle_numbers: let new changes have greater numbers than all that are there (PostgreSQL only: see origin).
-- Unbounded: it reads them all.
select setval('penstock.change_seq', greatest(
    (select last_value from penstock.change_seq), (select max(seq) from penstock.change), :high, 1
));
