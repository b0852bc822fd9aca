-- register: add a reader, unless there is one of its name.
insert into penstock_change_reader (name, position, registered_at, moved_at) values (:name, :position, :now, :now)
on conflict (name) do nothing returning name;

-- place: move a reader to a position, and end its lease.
update penstock_change_reader set position = :position, lease = null, moved_at = :now where name = :name returning name;

-- moment: the end of the feed: the greatest number given.
-- Differs: SQLite has no snapshots, and its numbers say it all.
select coalesce((select seq from sqlite_sequence where name = 'penstock_change'), 0);

-- take: read under a lease, if no living lease has the reader. Each lease that takes it raises the fence, which is a time
-- if it can be: so it also rises in a database that was restored.
update penstock_change_reader set lease = :lease, fence = case when lease = :lease then fence
    else max(fence + 1, cast((julianday('now') - 2440587.5) * 86400000 as integer)) end
where name = :name and (lease is null or lease = :lease
    or not exists (select 1 from penstock_lease l where l.id = penstock_change_reader.lease))
returning position;

-- leave: read no more under a lease.
update penstock_change_reader set lease = null where name = :name and lease = :lease;

-- begin: unread changes, in the order of commits.
-- Differs: the order of commits is that of numbers, so there are no batches to be kept together. Captured text may be no
-- Unicode, which other programs can store.
select seq, interests, kinds, cast(key as blob), cast(before as blob), cast(after as blob), changed_at
from penstock_change
where seq > :high and (:interests is null or exists (
    select 1 from json_each(penstock_change.interests) i where i.value in (select value from json_each(:interests))
))
order by seq limit :limit;

-- move: move a reader on, if it is under this lease and where it was.
update penstock_change_reader set position = :after, moved_at = :now
where name = :name and lease = :lease and position = :before
returning name;

-- readers: all readers by name.
select name, position, lease, registered_at, moved_at from penstock_change_reader order by name;

-- lag: how much is unread, up to a number, and when the oldest of it was written.
-- Differs: see begin.
select count(*), min(changed_at) from (
    select changed_at from penstock_change
    where seq > :high and (:interests is null or exists (
    select 1 from json_each(penstock_change.interests) i where i.value in (select value from json_each(:interests))
))
    order by seq limit :most
);

-- unread: the keys of rows with unread changes.
-- Differs: see begin.
select key from penstock_change
where seq > :high and exists (select 1 from json_each(penstock_change.interests) i where i.value = :interest) limit :limit;

-- first_since: the number before the lowest one written at a time or later, or the greatest given.
-- Differs: see begin.
-- Unbounded: it reads all that is kept.
select coalesce((select min(seq) - 1 from penstock_change where changed_at >= :moment),
    (select seq from sqlite_sequence where name = 'penstock_change'), 0);

-- forget: drop a reader.
delete from penstock_change_reader where name = :name returning name;

-- clear: delete the oldest changes up to a number, a piece at a time, except those that outboxes keep
-- (SQLite only: PostgreSQL truncates).
delete from penstock_change where seq in (select seq from penstock_change where seq <= :high order by seq limit :limit)
    and (:kept is null or changed_at <= strftime('%Y-%m-%dT%H:%M:%f000Z', 'now', :kept));

-- first: the first change, if outboxes do not keep it (SQLite only: see clear).
select seq from penstock_change
where seq = (select min(seq) from penstock_change)
    and (:kept is null or changed_at <= strftime('%Y-%m-%dT%H:%M:%f000Z', 'now', :kept));

-- kept: for how many seconds outboxes keep their changes (SQLite only: see clear).
select coalesce(max(keep_for), 0) from penstock_outbox;

-- size: about how many bytes the feed takes: the count of numbers times the length of the last rows.
-- Differs: PostgreSQL knows how large its tables are.
select coalesce((1 + (select max(seq) from penstock_change) - (select min(seq) from penstock_change)) * coalesce((
    select avg(50 + coalesce(length(key), 0) + coalesce(length(before), 0) + coalesce(length(after), 0))
    from (select key, before, after from penstock_change order by seq desc limit 100)
), 0), 0);
