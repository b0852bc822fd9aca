
-- The run to which plain SQL has sent an event last. Written and read by penstock_send_event.
create table penstock_workflow_sent (
    one integer primary key check (one = 1),
    run blob not null
) strict;

-- Takes rows, each an event for a run of a workflow, as part of the transaction. It has none.
create view penstock_send_event as select null as run, null as event, null as payload, null as key where false;

-- Whether its payload fits is seen when the run receives it: one that does not is told of in the log, and the run waits on.
-- An id has 26 letters of five bits, and its first two bits are 0; each byte is in three letters that follow one another.
create trigger penstock_send_event_insert instead of insert on penstock_send_event begin
    select raise(abort, 'penstock: payload is no JSON. Write a text with its quotes, as in "Ada", and nothing as null.')
    where not (typeof(new.payload) = 'text' and json_valid(new.payload));
    select raise(abort, 'penstock: event is the name of no event. Write the name that app.event declares.')
    where not (typeof(new.event) = 'text' and length(new.event) between 1 and 63 and new.event glob '[A-Za-z]*'
               and new.event not glob '*[^A-Za-z0-9._-]*');
    select raise(abort, 'penstock: key is no text of 1 to 200 characters. Leave it away for none.')
    where new.key is not null
      and not (typeof(new.key) = 'text' and length(new.key) between 1 and 200 and instr(new.key, char(0)) = 0);
    insert or replace into penstock_workflow_sent (one, run)
    select 1, cast(group_concat(substr(b.bytes, 1 + (((
        ((instr('0123456789abcdefghjkmnpqrstvwxyz', substr(new.run, 5 + (8 * p.value + 2) / 5, 1)) - 1) << 10)
        | ((instr('0123456789abcdefghjkmnpqrstvwxyz', substr(new.run, 6 + (8 * p.value + 2) / 5, 1)) - 1) << 5)
        | (instr('0123456789abcdefghjkmnpqrstvwxyz', substr(new.run, 7 + (8 * p.value + 2) / 5, 1)) - 1)
    ) >> (7 - (8 * p.value + 2) % 5)) & 255), 1), '') as blob)
    from json_each('[0,1,2,3,4,5,6,7,8,9,10,11,12,13,14,15]') p, penstock_byte b;
    select raise(abort, 'penstock: there is no such run, or it has ended. Write the id of a job, as in job_01jd….')
    where typeof(new.run) <> 'text' or new.run not glob 'job_[0-7]*' or length(new.run) <> 30
       or new.run glob 'job_*[^0-9a-hjkmnp-tv-z]*' or not exists (
        select 1 from penstock_workflow_sent s where
            exists (select 1 from penstock_ready_job j where j.id = s.run and j.ending is null)
            or exists (select 1 from penstock_scheduled_job j where j.id = s.run and j.ending is null)
            or exists (select 1 from penstock_running_job j where j.id = s.run and j.ending is null)
    );
    select raise(abort, 'penstock: the run has 10,000 events that it has not received. Have its workflow receive them.')
    where exists (
        select 1 from penstock_workflow_event e
        where e.run = (select run from penstock_workflow_sent) and not e.received limit 1 offset 9999
    );
    insert or ignore into penstock_workflow_event (run, kind, name, key, payload, sent_at)
    select s.run, 'event', new.event, new.key, new.payload, strftime('%Y-%m-%dT%H:%M:%f000Z', 'now')
    from penstock_workflow_sent s;
    insert into penstock_workflow_wake (run) select run from penstock_workflow_sent;
end;
