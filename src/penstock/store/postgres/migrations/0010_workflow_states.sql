
-- The id of a job from its public one: the reverse of penstock.job_id.
create function penstock.job_uuid(id text) returns uuid language sql immutable strict parallel safe as $$
    select string_agg(to_hex(substr(bits, 3 + 4 * place, 4)::bit(4)::integer), '' order by place)::uuid
    from (
        select string_agg(
            (strpos('0123456789abcdefghjkmnpqrstvwxyz', substr(id, 5 + place, 1)) - 1)::bit(5)::text, '' order by place
        ) as bits from generate_series(0, 25) place
    ) letters, generate_series(0, 31) place
$$;

-- Sends an event to a run of a workflow, as part of the transaction. Whether its payload fits is seen when the run receives
-- it: one that does not is told of in the log, and the run waits on.
create function penstock.send_event(run text, event text, payload jsonb, key text default null) returns void
language plpgsql volatile as $$
#variable_conflict use_variable
declare
    known uuid := case when run ~ '^job_[0-7][0-9a-hjkmnp-tv-z]{25}$' then penstock.job_uuid(run) end;
begin
    if payload is null then
        perform penstock.refuse('payload has no value', 'Write null as JSON does: ''null''.');
    elsif coalesce(event, '') !~ '^[A-Za-z][A-Za-z0-9._-]{0,62}$' then
        perform penstock.refuse('event is the name of no event', 'Write the name that app.event declares.');
    elsif length(key) not between 1 and 200 then
        perform penstock.refuse('key has not 1 to 200 characters', 'Leave it away for none.');
    elsif known is null or not exists (
        select from penstock.ready_job j where j.id = known and j.ending is null
        union all select from penstock.scheduled_job j where j.id = known and j.ending is null
        union all select from penstock.running_job j where j.id = known and j.ending is null
    ) then
        perform penstock.refuse('there is no such run, or it has ended', 'Write the id of a job, as in job_01jd….');
    elsif exists (select from penstock.workflow_event e where e.run = known and not e.received offset 9999) then
        perform penstock.refuse('the run has 10,000 events that it has not received', 'Have its workflow receive them.');
    end if;
    insert into penstock.workflow_event (run, kind, name, key, payload, sent_at)
    values (known, 'event', event, key, payload::text, clock_timestamp()) on conflict do nothing;
    insert into penstock.workflow_wake (run) values (known);
end $$;
