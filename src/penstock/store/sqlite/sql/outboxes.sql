-- add: make an outbox known, if none of its name is.
insert into penstock_outbox (name, function, kind, source, spec, version, keep_for, declared_at, backfill)
values (:name, :function, :kind, :source, :spec, :version, :keep_for, :now, :backfill)
on conflict (name) do nothing returning id;

-- declare: what is declared of an outbox now; one of which a higher version was declared stays as it is.
update penstock_outbox set
    function = :function, kind = :kind, source = :source, spec = :spec, version = :version, keep_for = :keep_for,
    declared_at = :now, epoch = epoch + 1
where name = :name and version <= :version;

-- capture: read messages under more numbers.
-- Differs: they are JSON.
update penstock_outbox set
    interests = (select json_group_array(t.value) from (
        select value from json_each(interests) union select value from json_each(:interests) order by value
    ) t),
    meanings = case when :meaning is null then meanings else json_patch(meanings, (
        select json_group_object(cast(t.value as text), :meaning) from json_each(:interests) t
    )) end,
    epoch = epoch + 1
where id = :outbox and exists (
    select 1 from json_each(:interests) n where n.value not in (select k.value from json_each(penstock_outbox.interests) k)
);

-- prepared: its changes are captured from now on.
update penstock_outbox set ready = 1, epoch = epoch + 1 where id = :outbox and not ready;

-- add_topic: make a topic known.
insert into penstock_topic (name) values (:topic) on conflict (name) do nothing;

-- topic: the number of a topic.
select id from penstock_topic where name = :topic;

-- send: append a message to the change feed.
-- Differs: the feed has slots on PostgreSQL, and numbers of transactions.
insert into penstock_change (interests, changed_at, kinds, key, after)
select json_array(-t.id), strftime('%Y-%m-%dT%H:%M:%f000Z', 'now'), 'message', :key, :payload
from penstock_topic t where t.name = :topic
returning seq;

-- resend: append rows to the change feed as they are.
-- Differs: keys and rows are JSON.
insert into penstock_change (interests, changed_at, kinds, key, after)
select json_array(:interest), strftime('%Y-%m-%dT%H:%M:%f000Z', 'now'), 'resent', value ->> 0, value ->> 1
from json_each(:rows) order by key;

-- list: all outboxes by name, or the one that has it.
-- Unbounded: it reads them all.
select id, name, function, kind, source, spec, version, keep_for, interests, declared_at, epoch, ready, paused, backfill, skips,
       trouble, delivered, delivered_at, rate, meanings, passed,
       (select r.fence from penstock_change_reader r where r.name = 'outbox:' || o.name)
from penstock_outbox o where :name is null or name = :name order by name;

-- advance: write how an outbox stands, if others have not changed it.
-- Differs: its reader is moved by another statement.
update penstock_outbox set
    backfill = :backfill, trouble = :trouble, passed = :passed, delivered = delivered + :delivered,
    delivered_at = case when :delivered > 0 then :now else delivered_at end,
    rate = case when :delivered > 0 then :delivered / 60.0
        + rate * max(0, min(1, 1 - coalesce(julianday(:now) - julianday(delivered_at), 0) * 1440)) else rate end,
    skips = case when :skipped = '[]' then skips else (
        select json_group_array(t.value) from json_each(skips) t where t.value not in (select value from json_each(:skipped))
    ) end
where id = :outbox and epoch = :epoch
returning id;

-- put: put a message aside, or write anew what is known of one that is.
-- Differs: one statement for each message.
insert into penstock_outbox_message (outbox, seq, key, state, interest, kind, row_key, before, after, changed_at, attempts,
    failed_at, retry_at, error, traceback, deaths, used_up, turned)
values (:outbox, :seqs, :keys, :states, :interests, :kinds, :row_keys, :befores, :afters, :changed_ats, :attempts, :failed_ats,
    :retry_ats, :errors, :tracebacks, :deaths, :used_up, :turned)
on conflict (outbox, seq) do update set
    state = excluded.state, attempts = excluded.attempts, failed_at = excluded.failed_at, retry_at = excluded.retry_at,
    error = excluded.error, traceback = excluded.traceback, deaths = excluded.deaths, used_up = excluded.used_up;

-- take: messages are aside no more.
-- Differs: their numbers are JSON.
delete from penstock_outbox_message where outbox = :outbox and seq in (select value from json_each(:seqs));

-- waiting: messages that wait, of keys of which none has failed, in their order.
-- Unbounded: it passes over those of keys of which one has failed.
-- Differs: it names its indexes.
select seq, interest, kind, row_key, before, after, changed_at, key, state, attempts, failed_at, retry_at, error, traceback,
       deaths, used_up, turned
from penstock_outbox_message w indexed by penstock_outbox_message_state
where w.outbox = :outbox and w.state = 'waiting' and not exists (
    select 1 from penstock_outbox_message h indexed by penstock_outbox_message_key
    where h.outbox = w.outbox and h.key = w.key and h.state = 'halted'
)
order by w.seq limit :limit;

-- failed: messages that keep those of their key waiting, and are to be tried again by now: that first which waits longest.
select seq, interest, kind, row_key, before, after, changed_at, key, state, attempts, failed_at, retry_at, error, traceback,
       deaths, used_up, turned
from penstock_outbox_message where outbox = :outbox and state = 'halted' and retry_at <= :now
order by retry_at, seq limit :limit;

-- next_retry: when the next of these is to be tried again.
select min(retry_at) from penstock_outbox_message where outbox = :outbox and state = 'halted';

-- kept_keys: the keys of which messages wait or have failed.
-- Unbounded: it reads all that is put aside.
select distinct key from penstock_outbox_message where outbox = :outbox and state in ('waiting', 'halted');

-- turned: the messages aside of which the feed tells as of mere changes.
-- Unbounded: it reads them all.
-- Differs: it names its index.
select seq from penstock_outbox_message indexed by penstock_outbox_message_turned where outbox = :outbox and turned;

-- put_keys: of rows with these keys those of which a change of these kinds was put aside.
-- Differs: keys and kinds are JSON.
select distinct row_key from penstock_outbox_message
where outbox = :outbox and row_key in (select value from json_each(:keys)) and kind in (select value from json_each(:kinds));

-- aside: messages that are put aside, in their order.
-- Differs: the states are JSON; each that is asked for is read by itself, through the index that it names.
select seq, interest, kind, row_key, before, after, changed_at, key, state, attempts, failed_at, retry_at, error, traceback,
       deaths, used_up, turned
from penstock_outbox_message
where outbox = :outbox and seq in (
    select seq from (
        select m.seq from penstock_outbox_message m indexed by penstock_outbox_message_state
        where m.outbox = :outbox and m.state = 'waiting' and m.seq > :after
        order by m.seq limit :limit * ('waiting' in (select value from json_each(:states)))
    )
    union all
    select seq from (
        select m.seq from penstock_outbox_message m indexed by penstock_outbox_message_state
        where m.outbox = :outbox and m.state = 'halted' and m.seq > :after
        order by m.seq limit :limit * ('halted' in (select value from json_each(:states)))
    )
    union all
    select seq from (
        select m.seq from penstock_outbox_message m indexed by penstock_outbox_message_state
        where m.outbox = :outbox and m.state = 'parked' and m.seq > :after
        order by m.seq limit :limit * ('parked' in (select value from json_each(:states)))
    )
)
order by seq limit :limit;

-- count_aside: how many messages are put aside.
-- Unbounded: it reads all that is put aside.
select state, count(*) from penstock_outbox_message where outbox = :outbox group by state;

-- backlog: what is put aside of each outbox, by state, as far as it is counted.
-- Unbounded: it counts up to as many as it is told.
-- Differs: it counts in subqueries, as a subquery in `from` cannot refer to what is beside it, and names its index.
select id, state,
    (select count(*) from (
        select 1 from penstock_outbox_message m indexed by penstock_outbox_message_state
        where m.outbox = o.id and m.state = s.state limit :most
    )),
    (select min(changed_at) from (
        select m.changed_at from penstock_outbox_message m indexed by penstock_outbox_message_state
        where m.outbox = o.id and m.state = s.state order by m.seq limit :most
    )),
    (select count(*) from (
        select m.used_up from penstock_outbox_message m indexed by penstock_outbox_message_state
        where m.outbox = o.id and m.state = s.state order by m.seq limit :most
    ) where used_up)
from penstock_outbox o, (select 'waiting' as state union all select 'halted' union all select 'parked') s
where exists (select 1 from penstock_outbox_message m where m.outbox = o.id and m.state = s.state);

-- pause: send nothing of an outbox, or go on.
update penstock_outbox set paused = :paused, epoch = epoch + 1 where name = :name returning id;

-- retry: have the next message tried again now, if it has failed, and is one of these; 0 stands for the outbox itself.
-- Differs: the numbers are JSON.
update penstock_outbox set
    trouble = case when json_extract(trouble, '$.seq') <> 0
        then json_set(trouble, '$.retry_at', :said, '$.since', :said, '$.attempts', 0, '$.halted', json('false'), '$.deaths', 0) end,
    epoch = epoch + 1
where name = :name and trouble is not null
  and (:seqs is null or json_extract(trouble, '$.seq') in (select value from json_each(:seqs)))
returning id;

-- retry_aside: the same of messages that are aside; those parked wait for their turn again.
-- Unbounded: it writes all that have failed.
-- Differs: see retry; `touch` follows.
update penstock_outbox_message set
    state = case when state = 'parked' then 'waiting' else state end, attempts = 0, deaths = 0, used_up = 0,
    retry_at = :now, failed_at = :now
where outbox = (select id from penstock_outbox where name = :name) and state in ('halted', 'parked')
  and (:seqs is null or seq in (select value from json_each(:seqs)))
returning seq;

-- skip: pass the next message by, if it has failed and has this number. An older row is passed by at once, whatever has
-- become of it: its number may not be its own for long.
update penstock_outbox set
    skips = case when json_extract(trouble, '$.left') is null
        then (select json_group_array(t.value) from (select value from json_each(skips) union select :seq) t) else skips end,
    backfill = coalesce(json_extract(trouble, '$.left'), backfill), trouble = null, epoch = epoch + 1
where name = :name and json_extract(trouble, '$.seq') = :seq
returning id;

-- skip_aside: the same of a message that is aside and has failed.
-- Differs: `touch` follows.
delete from penstock_outbox_message
where outbox = (select id from penstock_outbox where name = :name) and seq = :seq and state in ('halted', 'parked')
returning seq;

-- halt: have an outbox wait for somebody to look after it.
update penstock_outbox set trouble = :trouble, epoch = epoch + 1 where name = :name returning id;

-- touch: an outbox was changed by others than its relay.
update penstock_outbox set epoch = epoch + 1 where name = :name returning id;

-- hold_reader: keep an outbox under a lease, whoever reads it.
update penstock_change_reader set lease = :lease where name = :reader returning name;

-- moment: what the feed holds now.
-- Differs: SQLite has no snapshots, and its numbers say it all.
select coalesce((select seq from sqlite_sequence where name = 'penstock_change'), 0);

-- place: begin anew elsewhere. An older row that has failed keeps its number, and those done with, whose number is 0,
-- are that still if the others are kept.
update penstock_outbox set
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

-- put_reader: put the reader of an outbox elsewhere, and take it from who reads it.
update penstock_change_reader set position = :position, lease = null, moved_at = :now where name = :reader;

-- forget_unread: forget messages aside that are read again from a position on, but for those that were turned: the feed does
-- not tell of them.
-- Unbounded: it reads all that is put aside.
-- Differs: numbers say it all.
delete from penstock_outbox_message where outbox = :outbox and (seq < 0 and :older or not turned and seq in (
    select c.seq from penstock_change c
    where c.seq > :high and exists (
        select 1 from json_each(c.interests) i where i.value in (select value from json_each(:interests))
    )
));

-- forget_aside: forget messages aside, those parked too if they are meant.
-- Unbounded: it reads all that is put aside.
delete from penstock_outbox_message where outbox = :outbox and (state <> 'parked' or :parked);

-- forget: drop an outbox, with all that is put aside.
-- Unbounded: it deletes all of that.
delete from penstock_outbox where name = :name returning id;

-- forget_reader: drop the reader of an outbox.
delete from penstock_change_reader where name = :reader;
