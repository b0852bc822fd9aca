-- register: add a reader, unless there is one of its name.
insert into penstock.change_reader (name, position, registered_at, moved_at) values (:name, :position, :now, :now)
on conflict (name) do nothing returning name;

-- place: move a reader to a position, and end its lease.
update penstock.change_reader set position = :position, lease = null, moved_at = :now where name = :name returning name;

-- take: read under a lease, if no living lease has the reader. Each lease that takes it raises the fence, which is a time
-- if it can be: so it also rises in a database that was restored.
-- SQLite: its functions of time.
update penstock.change_reader set lease = :lease, fence = case when lease = :lease then fence
    else max(fence + 1, cast((julianday('now') - 2440587.5) * 86400000 as integer)) end
where name = :name and (lease is null or lease = :lease
    or not exists (select 1 from penstock.lease l where l.id = penstock.change_reader.lease))
returning position;
-- PostgreSQL: its functions of time.
update penstock.change_reader r set lease = :lease, fence = case when lease = :lease then fence
    else greatest(fence + 1, (extract(epoch from clock_timestamp()) * 1000)::bigint) end
where name = :name and (lease is null or lease = :lease or not exists (select from penstock.lease l where l.id = r.lease))
returning position;

-- leave: read no more under a lease.
update penstock.change_reader set lease = null where name = :name and lease = :lease;

-- {told}: changes with the snapshot of this statement, its clock and its server in each row. The clock is the place of
-- the write-ahead log up to which all is durable. It covers each commit that was flushed before it was seen, and a
-- crash does not lower it. A replica names no server, as it shows only what its primary has flushed.
with moment as materialized (select pg_current_snapshot()::text as snapshot, (case when pg_is_in_recovery()
    then pg_last_wal_replay_lsn() else pg_current_wal_flush_lsn() end - '0/0')::bigint as clock,
    case when pg_is_in_recovery() then null else {server} end as server)
select m.snapshot, m.clock, m.server, c.seq, c.interests, c.kinds, c.key, c.before, c.after, c.changed_at
from moment m left join lateral

-- {unread}: changes that a snapshot did not show: two ranges of the index, and nothing between them is looked at.
select seq, xid, interests, kinds, key, before, after, changed_at from penstock.change
where xid >= :seen_end and {wanted}
union all
select seq, xid, interests, kinds, key, before, after, changed_at from penstock.change
where xid = any(:seen_open::bigint[]) and {wanted}

-- {left}: of these the ones that were not handed over in a batch that is under way.
(seq > :last or xid >= :batch_end or xid = any(:batch_open::bigint[]))

-- {wanted}: a change of some interests, or of any.
-- SQLite: numbers are kept as JSON.
(:interests is null or exists (
    select 1 from json_each(penstock.change.interests) i where i.value in (select value from json_each(:interests))
))
-- PostgreSQL: numbers are kept as text.
(:interests::integer[] is null or string_to_array(interests, ',') && :interests::integer[]::text[])

-- {server}: the server since its last crash. A server that has recovered from a crash, and a replica that takes over, may
-- give the numbers of lost transactions to others. Its statistics then begin again. A crash of one process leaves the
-- time at which the server was started.
coalesce(extract(epoch from pg_stat_get_bgwriter_stat_reset_time())::text, '')

-- begin: unread changes, in the order of commits.
-- SQLite: the order of commits is that of numbers, so there are no batches to be kept together. Captured text may be no
-- Unicode, which other programs can store.
select seq, interests, kinds, cast(key as blob), cast(before as blob), cast(after as blob), changed_at
from penstock.change where seq > :high and {wanted} order by seq limit :limit;
-- PostgreSQL: the first of a new batch: the changes that this statement's snapshot shows.
{told} (select * from ({unread}) unread order by seq limit :limit) c on true order by c.seq;

-- begin_far: the same for a reader so far behind that `begin` takes too long. It reads in the order of numbers,
-- passing over seen changes; the slowest reader keeps few.
-- PostgreSQL: on SQLite the order of commits is that of numbers.
{told} (
    select seq, interests, kinds, key, before, after, changed_at from penstock.change
    where (xid + 0 >= :seen_end or xid + 0 = any(:seen_open::bigint[])) and {wanted}
    order by seq limit :limit
) c on true
order by c.seq;

-- go_on: the next of a batch that is under way, by the snapshot it began with.
-- The index of xid, which `+ 0` hides, would lead to all of the batch again for each piece.
-- PostgreSQL: on SQLite the order of commits is that of numbers.
select seq, interests, kinds, key, before, after, changed_at from penstock.change
where seq > :last
  and (xid + 0 >= :seen_end or xid + 0 = any(:seen_open::bigint[]))
  and xid + 0 < :batch_end and xid + 0 <> all(:batch_open::bigint[])
  and {wanted}
order by seq limit :limit;

-- move: move a reader on, if it is under this lease and where it was.
-- SQLite: a file has no server.
update penstock.change_reader set position = :after, moved_at = :now
where name = :name and lease = :lease and position = :before
returning name;
-- PostgreSQL: and if the server that gave the position has not crashed since.
update penstock.change_reader set position = :after, moved_at = :now
where name = :name and lease = :lease and position = :before and (:server::text is null or :server = {server})
returning name;

-- readers: all readers by name.
select name, position, lease, registered_at, moved_at from penstock.change_reader order by name;

-- lag: how much is unread, up to a number, and when the oldest of it was written.
-- SQLite: numbers say it all.
select count(*) as rows, min(changed_at) as oldest_at from (
    select changed_at from penstock.change where seq > :high and {wanted} order by seq limit :most
);
-- PostgreSQL: as in begin.
select count(*) as rows, min(changed_at) as oldest_at from (select changed_at from ({unread}) unread where {left} limit :most) counted;

-- unread: whether the session sees all that was not read, then the unread changes, with the keys of their rows.
-- SQLite: numbers say it all, and a snapshot shows what was deleted since.
select null as key, null as interests, null as kinds, true as whole
union all select key, interests, kinds, null from (
    select key, interests, kinds from penstock.change where seq > :high and {wanted} limit :limit
) unread;
-- PostgreSQL: as in begin. A snapshot that does not show the last emptying of a slot was taken before it.
select null as key, null as interests, null as kinds, coalesce(txid_visible_in_snapshot(
    pg_sequence_last_value('penstock.change_emptied'), txid_current_snapshot()), true) as whole
union all (select key, interests, kinds, null from ({unread}) unread where {left} limit :limit);

-- first_since: the beginning of the changes written at a time or later: a transaction and the greatest number given, or a
-- number.
-- Unbounded: it reads all that is kept.
-- SQLite: the number before the lowest, or the greatest given.
select null, coalesce((select min(seq) - 1 from penstock.change where changed_at >= :moment),
    (select seq from sqlite_sequence where name = 'penstock.change'), 0);
-- PostgreSQL: the lowest transaction that has written then.
select coalesce((select min(xid) from penstock.change where changed_at >= :moment),
    pg_snapshot_xmin(pg_current_snapshot())::text::bigint), (select last_value from penstock.change_seq);

-- forget: drop a reader.
delete from penstock.change_reader where name = :name returning name;

-- clear: delete the oldest changes up to a number, a piece at a time, except changes that outboxes keep.
-- SQLite: on PostgreSQL slots are truncated.
delete from penstock.change where seq in (select seq from penstock.change where seq <= :high order by seq limit :limit)
    and (:kept is null or changed_at <= strftime('%Y-%m-%dT%H:%M:%f000Z', 'now', :kept));

-- cleared: note the greatest number that `clear` is about to delete.
-- SQLite: on PostgreSQL slots are truncated.
update penstock.change_dropped set seq = max(seq, coalesce((select max(seq) from (
    select seq, changed_at from penstock.change where seq <= :high order by seq limit :limit
) where :kept is null or changed_at <= strftime('%Y-%m-%dT%H:%M:%f000Z', 'now', :kept)), 0));

-- dropped: the server of the feed, and its lost part: the greatest transaction or number of a dropped change.
-- SQLite: numbers move with the file.
select '' as origin, seq as last from penstock.change_dropped;
-- PostgreSQL: slots are truncated.
select origin || ' ' || {server} as origin, dropped as last from penstock.change_slot;

-- demand_alone: one demand at a time, so that none takes back a later one. It lasts once it is committed, as its reader
-- relies on it.
-- PostgreSQL: on SQLite there is one writer.
select pg_advisory_xact_lock(hashtextextended('penstock.demand', 0)), set_config('synchronous_commit', 'on', true);

-- demand: have interests on demand captured, and say until when.
-- SQLite: until a number of a change.
insert into penstock.demand (interest, until)
select i.id, :room + coalesce((select seq from sqlite_sequence where name = 'penstock.change'), 0)
from penstock.interest i where i.capture = i.id and i.id in (select value from json_each(:interests))
on conflict (interest) do update set until = excluded.until returning interest as id, until;
-- PostgreSQL: until a transaction. A change of a sequence is seen by all at once.
select i.id, setval(format('penstock.demand_%s', i.id)::regclass,
    pg_snapshot_xmax(pg_current_snapshot())::text::bigint + :room) as until
from penstock.interest i where i.capture = i.id and i.id = any(:interests::integer[]);

-- refused: the interests on demand whose sequence this user may not write, and the user.
-- PostgreSQL: SQLite has no users.
select i.id, quote_ident(current_user) as grantee from penstock.interest i where i.id = any(:interests::integer[])
    and not has_sequence_privilege(to_regclass(format('penstock.demand_%s', i.id)), 'UPDATE');

-- demand_since: a transaction that begins now; on SQLite the last change.
-- SQLite: a number says it.
select coalesce((select seq from sqlite_sequence where name = 'penstock.change'), 0);
-- PostgreSQL: a snapshot's end may be below transactions that are open.
select pg_current_xact_id()::text::bigint;

-- demanded: the interests on demand that are captured.
select interest from penstock.demanded where interest = any(:interests::integer[]);

-- first: the first change, if outboxes do not keep it.
-- SQLite: on PostgreSQL slots are truncated.
select seq from penstock.change
where seq = (select min(seq) from penstock.change)
    and (:kept is null or changed_at <= strftime('%Y-%m-%dT%H:%M:%f000Z', 'now', :kept));

-- kept: for how many seconds changes are kept though all readers have passed them: for outboxes, and for live queries.
-- SQLite: on PostgreSQL slots are truncated.
select max(coalesce((select max(keep_for) from penstock.outbox), 0),
    case when exists (select 1 from penstock.demanded) then 60 else 0 end);

-- slots: the slot into which changes are written, since when, the bytes of each, and how long outboxes keep theirs.
-- PostgreSQL: SQLite deletes rows, and has no slots.
select s.slot, s.since, array(select pg_relation_size(('penstock.change_' || n)::regclass) from generate_series(0, 3) n) as sizes,
       greatest((select max(keep_for) from penstock.outbox), '0', case when exists (select from penstock.demanded)
           then interval '60 seconds' end) as keep_for
from penstock.change_slot s;

-- size: about how many bytes the feed takes.
-- SQLite: the count of numbers times the length of the last rows.
select coalesce((1 + (select max(seq) from penstock.change) - (select min(seq) from penstock.change)) * coalesce((
    select avg(50 + coalesce(length(key), 0) + coalesce(length(before), 0) + coalesce(length(after), 0))
    from (select key, before, after from penstock.change order by seq desc limit 100)
), 0), 0) as size;
-- PostgreSQL: the sizes of its tables, with their indexes.
select sum(pg_total_relation_size(('penstock.change_' || n)::regclass))::bigint as size from generate_series(0, 3) n;

-- lock_room: keep readers from being registered until the transaction ends.
-- PostgreSQL: on SQLite there is one writer.
select slot from penstock.change_slot for update;

-- turn: write changes into another slot from now on.
-- PostgreSQL: SQLite deletes rows, and has no slots.
update penstock.change_slot set slot = :slot, since = :now where slot = :current returning slot;

-- oldest: for how many seconds the oldest transaction has been open, if this user may see those of others.
-- PostgreSQL: SQLite does not tell.
select case when pg_has_role('pg_read_all_stats', 'usage') then greatest(0, extract(epoch from clock_timestamp() - least(
    (select min(a.xact_start) from pg_stat_activity a
        where a.datname = current_database() and a.pid <> pg_backend_pid() and a.backend_type = 'client backend'),
    (select min(p.prepared) from pg_prepared_xacts p where p.database = current_database())
)))::double precision end;

-- origin: the server that the feed was on, and the present one.
-- PostgreSQL: SQLite's numbers move with the file.
select s.origin, penstock.origin() from penstock.change_slot s;

-- settle_in: write the server that the feed is on.
-- PostgreSQL: SQLite's numbers move with the file.
update penstock.change_slot set origin = penstock.origin();
select setval('penstock.change_emptied', 1);

-- lock_readers: hold all readers.
-- PostgreSQL: SQLite's numbers move with the file.
select name, position from penstock.change_reader order by name for update;

-- settle_changes: give changes numbers of transactions that fit another server. Changes that no reader can have been
-- handed count as written now. All others move below that server's numbers.
-- Unbounded: it writes them all.
-- PostgreSQL: SQLite's numbers move with the file.
update penstock.change
set xid = case when seq > :high then pg_current_xact_id()::text::bigint else xid - :era::bigint end;

-- settle_reader: move a reader along with its changes, and end its lease.
-- PostgreSQL: SQLite's numbers move with the file.
update penstock.change_reader set position = :position, lease = null where name = :name;

-- settle_numbers: let new changes have greater numbers than all that are there.
-- Unbounded: it reads them all.
-- PostgreSQL: SQLite's numbers move with the file.
select setval('penstock.change_seq', greatest(
    (select last_value from penstock.change_seq), (select max(seq) from penstock.change), :high, 1
));
