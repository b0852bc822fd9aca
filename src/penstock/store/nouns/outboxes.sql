-- {message}: a message that is aside.
seq, interest, kind, row_key, before, after, changed_at, key, state, attempts, failed_at, retry_at, error, traceback,
deaths, used_up, as_insert

-- add: make an outbox known, if none of its name is.
insert into penstock.outbox (name, function, kind, source, spec, version, keep_for, declared_at, backfill)
values (:name, :function, :kind, :source, :spec, :version, :keep_for, :now, :backfill)
on conflict (name) do nothing returning id;

-- declare: store the declaration of an outbox; one with a higher declared version stays as it is.
update penstock.outbox set
    function = :function, kind = :kind, source = :source, spec = :spec, version = :version, keep_for = :keep_for,
    declared_at = :now, epoch = epoch + 1
where name = :name and version <= :version;

-- capture: read messages under more numbers.
-- SQLite: numbers are kept as JSON.
update penstock.outbox set
    interests = (select json_group_array(t.value) from (
        select value from json_each(interests) union select value from json_each(:interests) order by value
    ) t),
    meanings = case when :meaning is null then meanings else json_patch(meanings, (
        select json_group_object(cast(t.value as text), :meaning) from json_each(:interests) t
    )) end,
    epoch = epoch + 1
where id = :outbox and exists (
    select 1 from json_each(:interests) n where n.value not in (select k.value from json_each(penstock.outbox.interests) k)
);
-- PostgreSQL: numbers are kept as an array.
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

-- send: append a message to the change feed. Its trace stands where a change has the row as it was.
-- SQLite: the feed has no slots, and no numbers of transactions.
insert into penstock.change (interests, changed_at, kinds, key, before, after)
select json_array(-t.id), strftime('%Y-%m-%dT%H:%M:%f000Z', 'now'), 'message', :key, :trace, :payload
from penstock.topic t where t.name = :topic
returning seq;
-- PostgreSQL: the feed has slots, and numbers of transactions.
insert into penstock.change (slot, xid, interests, changed_at, kinds, key, before, after)
select penstock.current_slot(), pg_current_xact_id()::text::bigint, (-t.id)::text, clock_timestamp(), 'message', :key, :trace,
       :payload
from penstock.topic t where t.name = :topic
returning seq;

-- resend: append rows to the change feed as they are.
-- SQLite: keys and rows are JSON.
insert into penstock.change (interests, changed_at, kinds, key, after)
select json_array(:interest), strftime('%Y-%m-%dT%H:%M:%f000Z', 'now'), 'resent', value ->> 0, value ->> 1
from json_each(:rows) order by key;
-- PostgreSQL: see send.
insert into penstock.change (slot, xid, interests, changed_at, kinds, key, after)
select penstock.current_slot(), pg_current_xact_id()::text::bigint, :interest::integer::text, clock_timestamp(), 'resent',
       t.key, t.after
from unnest(:keys::text[], :afters::text[]) with ordinality as t (key, after, place) order by t.place;

-- list: all outboxes by name, or the one that has it.
-- Unbounded: it reads them all.
select id, name, function, kind, source, spec, version, keep_for, interests, declared_at, epoch, ready, paused, backfill, skips,
       trouble, delivered, delivered_at, rate, meanings, passed,
       (select r.fence from penstock.change_reader r where r.name = 'outbox:' || o.name) as fence
from penstock.outbox o where :name::text is null or name = :name order by name;

-- advance: write the cursor of an outbox, and move its reader on; nothing if others have changed or taken either. A caller
-- that gets no row rolls back.
-- SQLite: there is no UPDATE in WITH.
update penstock.change_reader set position = :after, moved_at = :now
where name = :reader and lease = :lease and position = :before;
update penstock.outbox set
    backfill = :backfill, trouble = :trouble, passed = :passed, delivered = delivered + :delivered,
    delivered_at = case when :delivered > 0 then :now else delivered_at end,
    rate = case when :delivered > 0 then :delivered / 60.0
        + rate * max(0, min(1, 1 - coalesce(julianday(:now) - julianday(delivered_at), 0) * 1440)) else rate end,
    skips = case when :skipped = '[]' then skips else (
        select json_group_array(t.value) from json_each(skips) t where t.value not in (select value from json_each(:skipped))
    ) end
where id = :outbox and epoch = :epoch and changes() > 0
returning id;
-- PostgreSQL: one statement for both. An update in WITH always runs, so it has a condition of its own. The
-- position is refused if its server has crashed since, as in `move` of the feed.
with unchanged as materialized (
    select id from penstock.outbox where id = :outbox and epoch = :epoch for update
), moved as (
    update penstock.change_reader set position = :after, moved_at = :now
    where name = :reader and lease = :lease and position = :before and exists (select from unchanged)
      and (:server::text is null
          or :server = coalesce(extract(epoch from pg_stat_get_bgwriter_stat_reset_time())::text, ''))
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

-- put: set messages aside, or write the trouble of messages that are aside.
insert into penstock.outbox_message (
    outbox, seq, key, state, interest, kind, row_key, before, after, changed_at, attempts, failed_at, retry_at, error,
    traceback, deaths, used_up, as_insert
)
select :outbox, t.*
from unnest(
    :seq::bigint[], :key::text[], :state::text[], :interest::integer[], :kind::text[], :row_key::text[],
    :before::text[], :after::text[], :changed_at::timestamptz[], :attempts::integer[], :failed_at::timestamptz[],
    :retry_at::timestamptz[], :error::text[], :traceback::text[],
    :deaths::integer[], :used_up::boolean[], :as_insert::boolean[]
) as t
on conflict (outbox, seq) do update set
    state = excluded.state, attempts = excluded.attempts, failed_at = excluded.failed_at, retry_at = excluded.retry_at,
    error = excluded.error, traceback = excluded.traceback, deaths = excluded.deaths, used_up = excluded.used_up;

-- take: messages are aside no more.
delete from penstock.outbox_message where outbox = :outbox and seq = any(:seqs::bigint[]);

-- waiting: messages that wait, of keys without a failed one, in their order.
-- Unbounded: it passes over messages of keys with a failed one.
-- SQLite: it names its indexes.
select {message}
from penstock.outbox_message w indexed by penstock_outbox_message_state
where w.outbox = :outbox and w.state = 'waiting' and not exists (
    select 1 from penstock.outbox_message h indexed by penstock_outbox_message_key
    where h.outbox = w.outbox and h.key = w.key and h.state = 'halted'
)
order by w.seq limit :limit;
-- PostgreSQL: it cannot name its indexes. It asks by ranges, in an order that only the right one has, and `|| ''` hides all
-- others with that state. So it is read through these whatever was known of the table when it was planned.
select {message}
from penstock.outbox_message w
where w.outbox = :outbox and w.state between 'waiting' and 'waiting' and (
    select true from penstock.outbox_message h
    where h.outbox = w.outbox and left(h.key, 500) between left(w.key, 500) and left(w.key, 500) and h.key = w.key
      and h.state || '' = 'halted'
    order by left(h.key, 500) limit 1
) is null
order by w.state, w.seq limit :limit;

-- failed: messages that keep those of their key waiting, and are to be tried again by now: that first which waits longest.
select {message}
from penstock.outbox_message where outbox = :outbox and state = 'halted' and retry_at <= :now
order by retry_at, seq limit :limit;

-- next_retry: when the next of these is to be tried again.
select min(retry_at) from penstock.outbox_message where outbox = :outbox and state = 'halted';

-- kept_keys: the keys whose messages wait or have failed.
-- Unbounded: it reads all that is put aside.
select distinct key from penstock.outbox_message where outbox = :outbox and state in ('waiting', 'halted');

-- inserts: the messages aside that are inserts here, and mere changes in the feed.
-- Unbounded: it reads them all.
-- SQLite: it names its index.
select seq from penstock.outbox_message indexed by penstock_outbox_message_as_insert where outbox = :outbox and as_insert;
-- PostgreSQL: it finds its index by itself.
select seq from penstock.outbox_message where outbox = :outbox and as_insert;

-- put_keys: of rows with these keys the ones with a change of these kinds put aside.
-- SQLite: it looks each key up.
select distinct row_key from penstock.outbox_message
where outbox = :outbox and row_key in (select value from json_each(:keys)) and kind in (select value from json_each(:kinds));
-- PostgreSQL: see waiting.
select distinct k.row_key from unnest(:keys::text[]) as k (row_key) where (
    select true from penstock.outbox_message m
    where m.outbox = :outbox and left(m.row_key, 500) between left(k.row_key, 500) and left(k.row_key, 500)
      and m.row_key = k.row_key and m.kind = any(:kinds::text[])
    order by left(m.row_key, 500) limit 1
);

-- aside: messages that are put aside, in their order.
-- SQLite: each state that is asked for is read by itself, through the index that it names.
select {message}
from penstock.outbox_message
where outbox = :outbox and seq in (
    select found.value from json_each(:states) s cross join json_each((
        select json_group_array(few.seq) from (
            select m.seq from penstock.outbox_message m indexed by penstock_outbox_message_state
            where m.outbox = :outbox and m.state = s.value and m.seq > :after order by m.seq limit :limit
        ) few
    )) found
)
order by seq limit :limit;
-- PostgreSQL: see waiting.
select {message}
from unnest(:states::text[]) as s (asked), lateral (
    select * from penstock.outbox_message m
    where m.outbox = :outbox and (m.state, m.seq) > (s.asked, :after::bigint) and m.state <= s.asked
    order by m.state, m.seq limit :limit
) m
order by seq limit :limit;

-- backlog: the set-aside messages of each outbox, by state, as far as they are counted.
-- Unbounded: it counts up to as many as it is told.
-- SQLite: it counts in one subquery, as a subquery in `from` cannot refer to its neighbours, and names its index.
with found as materialized (
    select o.id, s.state, (
        select json_array(count(*), min(c.changed_at), count(*) filter (where c.used_up)) from (
            select m.changed_at, m.used_up from penstock.outbox_message m indexed by penstock_outbox_message_state
            where m.outbox = o.id and m.state = s.state order by m.seq limit :most
        ) c
    ) as counts
    from penstock.outbox o, (select 'waiting' as state union all select 'halted' union all select 'parked') s
)
select id as outbox, state, counts ->> 0 as number, counts ->> 1 as oldest_at, counts ->> 2 as used_up
from found where counts ->> 0 > 0;
-- PostgreSQL: see waiting.
select o.id as outbox, t.state, t.number, t.oldest_at, t.used_up
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
-- SQLite: its functions of JSON.
update penstock.outbox set
    trouble = case when json_extract(trouble, '$.seq') <> 0
        then json_set(trouble, '$.retry_at', :said, '$.since', :said, '$.attempts', 0, '$.halted', json('false'), '$.deaths', 0) end,
    epoch = epoch + 1
where name = :name and trouble is not null
  and (:seqs is null or json_extract(trouble, '$.seq') in (select value from json_each(:seqs)))
returning id;
-- PostgreSQL: its functions of JSON.
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
-- SQLite: there is no UPDATE in WITH.
update penstock.outbox_message set
    state = case when state = 'parked' then 'waiting' else state end, attempts = 0, deaths = 0, used_up = 0,
    retry_at = :now, failed_at = :now
where outbox = (select id from penstock.outbox where name = :name) and state in ('halted', 'parked')
  and (:seqs is null or seq in (select value from json_each(:seqs)))
returning seq;
update penstock.outbox set epoch = epoch + 1 where name = :name and changes() > 0;
-- PostgreSQL: the outbox is locked first, as `advance` does.
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

-- skip: pass the next message by, if it has failed and has this number. An older row is passed by at once in any state:
-- its number may not be its own for long.
-- SQLite: numbers are kept as JSON.
update penstock.outbox set
    skips = case when json_extract(trouble, '$.left') is null
        then (select json_group_array(t.value) from (select value from json_each(skips) union select :seq) t) else skips end,
    backfill = coalesce(json_extract(trouble, '$.left'), backfill), trouble = null, epoch = epoch + 1
where name = :name and json_extract(trouble, '$.seq') = :seq
returning id;
-- PostgreSQL: numbers are kept as an array.
update penstock.outbox set
    skips = case when trouble::jsonb ->> 'left' is null then skips || :seq::bigint else skips end,
    backfill = coalesce(trouble::jsonb ->> 'left', backfill), trouble = null, epoch = epoch + 1
where name = :name and (trouble::jsonb ->> 'seq')::bigint = :seq
returning id;

-- skip_aside: the same of a message that is aside and has failed.
-- SQLite: there is no DELETE in WITH.
delete from penstock.outbox_message
where outbox = (select id from penstock.outbox where name = :name) and seq = :seq and state in ('halted', 'parked')
returning seq;
update penstock.outbox set epoch = epoch + 1 where name = :name and changes() > 0;
-- PostgreSQL: see retry_aside.
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

-- hold_reader: keep an outbox under a lease, taken from its reader.
update penstock.change_reader set lease = :lease where name = :reader returning name;

-- place: begin again elsewhere. An older row that has failed keeps its number, and those done with, whose number is 0,
-- are that still if the others are kept.
-- SQLite: its functions of JSON.
update penstock.outbox set
    backfill = case
        when :backfill <> 'kept' or :backfill is null then :backfill
        when json_extract(trouble, '$.left') is null then backfill
        else json_set(backfill, '$.failed',
            json_array(json_extract(trouble, '$.seq'), json_extract(trouble, '$.key')))
    end,
    trouble = null, skips = '[]', epoch = epoch + 1,
    passed = case when :backfill = 'kept' then (
        select json_group_array(json(one.value)) from json_each(passed) one where one.value ->> 0 = 0
    ) else '[]' end
where name = :name
returning id, interests;
-- PostgreSQL: its functions of JSON.
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

-- put_reader: move the reader of an outbox elsewhere, and take it from its relay.
update penstock.change_reader set position = :position, lease = null, moved_at = :now where name = :reader;

-- forget_unread: forget messages aside that are read again from a position on, but not inserts here: the
-- feed has them as mere changes.
-- Unbounded: it reads all that is put aside.
-- SQLite: numbers say it all.
delete from penstock.outbox_message where outbox = :outbox and (seq < 0 and :older or not as_insert and seq in (
    select c.seq from penstock.change c
    where c.seq > :high and exists (
        select 1 from json_each(c.interests) i where i.value in (select value from json_each(:interests))
    )
));
-- PostgreSQL: on SQLite numbers say it all.
delete from penstock.outbox_message m where m.outbox = :outbox and ((m.seq < 0 and :older::boolean) or not m.as_insert and m.seq in (
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
