-- add: make an outbox known, if none of its name is.
insert into penstock.outbox (name, function, kind, source, spec, version, keep_for, declared_at, backfill)
values (:name, :function, :kind, :source, :spec, :version, :keep_for, :now, :backfill)
on conflict (name) do nothing returning id;

-- declare: what is declared of an outbox now; one of which a higher version was declared stays as it is.
update penstock.outbox set
    function = :function, kind = :kind, source = :source, spec = :spec, version = :version, keep_for = :keep_for,
    declared_at = :now, epoch = epoch + 1
where name = :name and version <= :version;

-- capture: read messages under more numbers.
-- Differs: they are an array.
update penstock.outbox set
    interests = array(select distinct t.id from unnest(interests || :interests::integer[]) as t (id) order by t.id),
    meanings = case when :meaning::text is null then meanings else (meanings::jsonb || (
        select jsonb_object_agg(t.id::text, :meaning::text) from unnest(:interests) as t (id)
    ))::text end,
    epoch = epoch + 1
where id = :outbox and not interests @> :interests;

-- prepared: its changes are captured from now on.
update penstock.outbox set ready = true, epoch = epoch + 1 where id = :outbox and not ready;

-- add_topic: make a topic known.
insert into penstock.topic (name) values (:topic) on conflict (name) do nothing;

-- topic: the number of a topic.
select id from penstock.topic where name = :topic;

-- send: append a message to the change feed.
-- Differs: the feed has slots, and numbers of transactions.
insert into penstock.change (slot, xid, interests, changed_at, kinds, key, after)
select penstock.current_slot(), pg_current_xact_id()::text::bigint, (-t.id)::text, clock_timestamp(), 'message', :key, :payload
from penstock.topic t where t.name = :topic
returning seq;

-- resend: append rows to the change feed as they are.
-- Differs: see send. Keys and rows are arrays.
insert into penstock.change (slot, xid, interests, changed_at, kinds, key, after)
select penstock.current_slot(), pg_current_xact_id()::text::bigint, :interest::integer::text, clock_timestamp(), 'resent',
       t.key, t.after
from unnest(:keys::text[], :afters::text[]) with ordinality as t (key, after, place) order by t.place;

-- list: all outboxes by name, or the one that has it.
-- Unbounded: it reads them all.
select id, name, function, kind, source, spec, version, keep_for, interests, declared_at, epoch, ready, paused, backfill, skips,
       trouble, delivered, delivered_at, rate, meanings, passed,
       (select r.fence from penstock.change_reader r where r.name = 'outbox:' || o.name)
from penstock.outbox o where :name::text is null or name = :name order by name;

-- advance: write how an outbox stands, and move its reader on; nothing if others have changed or taken either.
-- Differs: one statement for both. An update in WITH is done whatever becomes of the rest, so it asks by itself.
with unchanged as materialized (
    select id from penstock.outbox where id = :outbox and epoch = :epoch for update
), moved as (
    update penstock.change_reader set position = :after, moved_at = :now
    where name = :reader and lease = :lease and position = :before and exists (select from unchanged)
    returning name
)
update penstock.outbox set
    backfill = :backfill, trouble = :trouble, passed = :passed, delivered = delivered + :delivered::bigint,
    delivered_at = case when :delivered > 0 then :now else delivered_at end,
    rate = case when :delivered > 0 then :delivered / 60.0
        + rate * greatest(0, least(1, 1 - coalesce(extract(epoch from :now - delivered_at), 0) / 60)) else rate end,
    skips = case when cardinality(:skipped::bigint[]) = 0 then skips
            else array(select t.seq from unnest(skips) as t (seq) where t.seq <> all(:skipped)) end
where id = :outbox and epoch = :epoch and exists (select from moved)
returning id;

-- put: put messages aside, or write anew what is known of those that are.
-- Differs: one statement for any number of messages.
insert into penstock.outbox_message (outbox, seq, key, state, interest, kind, row_key, before, after, changed_at, attempts,
    failed_at, retry_at, error, traceback, deaths, used_up, turned)
select :outbox, t.*
from unnest(
    :seqs::bigint[], :keys::text[], :states::text[], :interests::integer[], :kinds::text[], :row_keys::text[],
    :befores::text[], :afters::text[], :changed_ats::timestamptz[], :attempts::integer[], :failed_ats::timestamptz[],
    :retry_ats::timestamptz[], :errors::text[], :tracebacks::text[],
    :deaths::integer[], :used_up::boolean[], :turned::boolean[]
) as t
on conflict (outbox, seq) do update set
    state = excluded.state, attempts = excluded.attempts, failed_at = excluded.failed_at, retry_at = excluded.retry_at,
    error = excluded.error, traceback = excluded.traceback, deaths = excluded.deaths, used_up = excluded.used_up;

-- take: messages are aside no more.
-- Differs: their numbers are an array.
delete from penstock.outbox_message where outbox = :outbox and seq = any(:seqs::bigint[]);

-- waiting: messages that wait, of keys of which none has failed, in their order.
-- Unbounded: it passes over those of keys of which one has failed.
-- Differs: it cannot name its indexes. It asks by ranges, in an order that only the right one has, and `|| ''` hides all
-- others with that state. So it is read through these whatever was known of the table when it was planned.
select seq, interest, kind, row_key, before, after, changed_at, key, state, attempts, failed_at, retry_at, error, traceback,
       deaths, used_up, turned
from penstock.outbox_message w
where w.outbox = :outbox and w.state between 'waiting' and 'waiting' and (
    select true from penstock.outbox_message h
    where h.outbox = w.outbox and left(h.key, 500) between left(w.key, 500) and left(w.key, 500) and h.key = w.key
      and h.state || '' = 'halted'
    order by left(h.key, 500) limit 1
) is null
order by w.state, w.seq limit :limit;

-- failed: messages that keep those of their key waiting, and are to be tried again by now: that first which waits longest.
select seq, interest, kind, row_key, before, after, changed_at, key, state, attempts, failed_at, retry_at, error, traceback,
       deaths, used_up, turned
from penstock.outbox_message where outbox = :outbox and state = 'halted' and retry_at <= :now
order by retry_at, seq limit :limit;

-- next_retry: when the next of these is to be tried again.
select min(retry_at) from penstock.outbox_message where outbox = :outbox and state = 'halted';

-- kept_keys: the keys of which messages wait or have failed.
-- Unbounded: it reads all that is put aside.
select distinct key from penstock.outbox_message where outbox = :outbox and state in ('waiting', 'halted');

-- turned: the messages aside of which the feed tells as of mere changes.
-- Unbounded: it reads them all.
select seq from penstock.outbox_message where outbox = :outbox and turned;

-- put_keys: of rows with these keys those of which a change of these kinds was put aside.
-- Differs: keys and kinds are arrays; see waiting.
select distinct k.row_key from unnest(:keys::text[]) as k (row_key) where (
    select true from penstock.outbox_message m
    where m.outbox = :outbox and left(m.row_key, 500) between left(k.row_key, 500) and left(k.row_key, 500)
      and m.row_key = k.row_key and m.kind = any(:kinds::text[])
    order by left(m.row_key, 500) limit 1
);

-- aside: messages that are put aside, in their order.
-- Differs: the states are an array; see waiting.
select seq, interest, kind, row_key, before, after, changed_at, key, state, attempts, failed_at, retry_at, error, traceback,
       deaths, used_up, turned
from unnest(:states::text[]) as s (asked), lateral (
    select * from penstock.outbox_message m
    where m.outbox = :outbox and (m.state, m.seq) > (s.asked, :after::bigint) and m.state <= s.asked
    order by m.state, m.seq limit :limit
) m
order by seq limit :limit;

-- count_aside: how many messages are put aside.
-- Unbounded: it reads all that is put aside.
select state, count(*) from penstock.outbox_message where outbox = :outbox group by state;

-- backlog: what is put aside of each outbox, by state, as far as it is counted.
-- Unbounded: it counts up to as many as it is told.
-- Differs: see waiting.
select o.id, t.state, t.number, t.oldest_at, t.used_up
from penstock.outbox o cross join (values ('waiting'), ('halted'), ('parked')) as s (state), lateral (
    select s.state, count(*) as number, min(c.changed_at) as oldest_at, count(*) filter (where c.used_up) as used_up from (
        select m.changed_at, m.used_up from penstock.outbox_message m
        where m.outbox = o.id and m.state between s.state and s.state order by m.state, m.seq limit :most
    ) c
) t
where t.number > 0;

-- pause: send nothing of an outbox, or go on.
update penstock.outbox set paused = :paused, epoch = epoch + 1 where name = :name returning id;

-- retry: have the next message tried again now, if it has failed, and is one of these; 0 stands for the outbox itself.
-- Differs: the numbers are an array.
update penstock.outbox set
    trouble = case when (trouble::jsonb ->> 'seq')::bigint <> 0
        then (trouble::jsonb || jsonb_build_object(
            'retry_at', :said::text, 'since', :said::text, 'attempts', 0, 'halted', false, 'deaths', 0
        ))::text end,
    epoch = epoch + 1
where name = :name and trouble is not null
  and (:seqs::bigint[] is null or (trouble::jsonb ->> 'seq')::bigint = any(:seqs))
returning id;

-- retry_aside: the same of messages that are aside; those parked wait for their turn again.
-- Unbounded: it writes all that have failed.
-- Differs: see retry. The outbox is locked first, as `advance` does.
with o as materialized (
    select id from penstock.outbox where name = :name for update
), again as (
    update penstock.outbox_message m set state = case when m.state = 'parked' then 'waiting' else m.state end, attempts = 0,
        deaths = 0, used_up = false, retry_at = :now, failed_at = :now
    from o
    where m.outbox = o.id and m.state in ('halted', 'parked') and (:seqs::bigint[] is null or m.seq = any(:seqs))
    returning m.seq
), changed as (
    update penstock.outbox set epoch = epoch + 1 where name = :name and exists (select from again)
)
select seq from again;

-- skip: pass the next message by, if it has failed and has this number. An older row is passed by at once, whatever has
-- become of it: its number may not be its own for long.
update penstock.outbox set
    skips = case when trouble::jsonb ->> 'left' is null then skips || :seq::bigint else skips end,
    backfill = coalesce(trouble::jsonb ->> 'left', backfill), trouble = null, epoch = epoch + 1
where name = :name and (trouble::jsonb ->> 'seq')::bigint = :seq
returning id;

-- skip_aside: the same of a message that is aside and has failed.
-- Differs: see retry_aside.
with o as materialized (
    select id from penstock.outbox where name = :name for update
), gone as (
    delete from penstock.outbox_message m using o
    where m.outbox = o.id and m.seq = :seq and m.state in ('halted', 'parked')
    returning m.seq
), changed as (
    update penstock.outbox set epoch = epoch + 1 where name = :name and exists (select from gone)
)
select seq from gone;

-- halt: have an outbox wait for somebody to look after it.
update penstock.outbox set trouble = :trouble, epoch = epoch + 1 where name = :name returning id;

-- touch: an outbox was changed by others than its relay.
update penstock.outbox set epoch = epoch + 1 where name = :name returning id;

-- hold_reader: keep an outbox under a lease, whoever reads it.
update penstock.change_reader set lease = :lease where name = :reader returning name;

-- moment: what the feed holds now.
-- Differs: SQLite has no snapshots, and its numbers say it all.
select pg_current_snapshot()::text, (select last_value from penstock.change_seq);

-- hold_room: keep the feed from being emptied until the transaction ends (PostgreSQL only: SQLite has one writer).
select slot from penstock.change_slot for share;

-- place: begin anew elsewhere. An older row that has failed keeps its number, and those done with, whose number is 0,
-- are that still if the others are kept.
update penstock.outbox set
    backfill = case
        when :backfill <> 'kept' or :backfill is null then :backfill
        when trouble::jsonb ->> 'left' is null then backfill
        else jsonb_set(backfill::jsonb, '{failed}',
            jsonb_build_array(trouble::jsonb -> 'seq', trouble::jsonb -> 'key'))::text
    end,
    trouble = null, skips = '{}', epoch = epoch + 1,
    passed = case when :backfill = 'kept' then (
        select coalesce(jsonb_agg(one), '[]')::text from jsonb_array_elements(passed::jsonb) one where one -> 0 = '0'
    ) else '[]' end
where name = :name
returning id, interests;

-- put_reader: put the reader of an outbox elsewhere, and take it from who reads it.
update penstock.change_reader set position = :position, lease = null, moved_at = :now where name = :reader;

-- forget_unread: forget messages aside that are read again from a position on, but for those that were turned: the feed does
-- not tell of them.
-- Unbounded: it reads all that is put aside.
-- Differs: on SQLite numbers say it all.
delete from penstock.outbox_message m where m.outbox = :outbox and ((m.seq < 0 and :older::boolean) or not m.turned and m.seq in (
    select c.seq from penstock.change c
    where string_to_array(c.interests, ',') && :interests::integer[]::text[]
      and (c.xid >= :seen_end or c.xid = any(:seen_open::bigint[]))
      and (c.seq > :last or c.xid >= :batch_end or c.xid = any(:batch_open::bigint[]))
));

-- forget_aside: forget messages aside, those parked too if they are meant.
-- Unbounded: it reads all that is put aside.
delete from penstock.outbox_message where outbox = :outbox and (state <> 'parked' or :parked);

-- forget: drop an outbox, with all that is put aside.
-- Unbounded: it deletes all of that.
delete from penstock.outbox where name = :name returning id;

-- forget_reader: drop the reader of an outbox.
delete from penstock.change_reader where name = :reader;
