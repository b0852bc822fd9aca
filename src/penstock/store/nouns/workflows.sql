-- {record}: a record of a run.
number, kind, place, at, function, digest, args, outcome, attempts, due_at, job, made_at, learned

-- history: the records of a run.
select {record} from penstock.workflow_record where run = :run;

-- find_record: a record of a run.
select {record} from penstock.workflow_record where run = :run and number = :number;

-- hold: keep a run from being taken from its lease until this transaction ends; nothing if it was taken before.
select 1 as held from penstock.running_job where id = :run and lease = :lease for key share;

-- record: add records of a run, or the outcomes of calls that have begun.
-- SQLite: one at a time.
insert into penstock.workflow_record (run, {record})
values (:run, :number, :kind, :place, :at, :function, :digest, :args, :outcome, :attempts, :due_at, :job, :made_at, :learned)
on conflict (run, number) do update
set place = excluded.place, at = excluded.at, outcome = excluded.outcome, attempts = excluded.attempts,
    due_at = excluded.due_at, learned = excluded.learned;
-- PostgreSQL: any number at once.
insert into penstock.workflow_record (run, {record})
select :run::uuid, t.* from unnest(
    :number::bigint[], :kind::text[], :place::bigint[], :at::timestamptz[], :function::text[], :digest::text[],
    :args::text[], :outcome::text[], :attempts::integer[], :due_at::timestamptz[], :job::uuid[], :made_at::timestamptz[],
    :learned::bigint[]
) as t ({record})
on conflict (run, number) do update
set place = excluded.place, at = excluded.at, outcome = excluded.outcome, attempts = excluded.attempts,
    due_at = excluded.due_at, learned = excluded.learned;

-- record_alone: add records of a run that is still under its lease, by themselves; the number of each that was added.
-- SQLite: one at a time.
insert into penstock.workflow_record (run, {record})
select :run, :number, :kind, :place, :at, :function, :digest, :args, :outcome, :attempts, :due_at, :job, :made_at, :learned
where exists (select 1 from penstock.running_job where id = :run and lease = :lease)
on conflict (run, number) do update
set place = excluded.place, at = excluded.at, outcome = excluded.outcome, attempts = excluded.attempts,
    due_at = excluded.due_at, learned = excluded.learned
returning number;
-- PostgreSQL: any number at once.
with held as materialized (
    select 1 from penstock.running_job where id = :run and lease = :lease for key share
)
insert into penstock.workflow_record (run, {record})
select :run::uuid, t.* from held cross join unnest(
    :number::bigint[], :kind::text[], :place::bigint[], :at::timestamptz[], :function::text[], :digest::text[],
    :args::text[], :outcome::text[], :attempts::integer[], :due_at::timestamptz[], :job::uuid[], :made_at::timestamptz[],
    :learned::bigint[]
) as t ({record})
on conflict (run, number) do update
set place = excluded.place, at = excluded.at, outcome = excluded.outcome, attempts = excluded.attempts,
    due_at = excluded.due_at, learned = excluded.learned
returning number;

-- reset_attempts: count the attempts at a run from 1 again, as it got on.
update penstock.running_job set attempt = 1 where id = :run and lease = :lease and attempt > 1;

-- publish: keep the state that a run has published last.
insert into penstock.workflow_state (run, published) values (:run, :published)
on conflict (run) do update set published = excluded.published;

-- forget_records: forget the records of a run.
delete from penstock.workflow_record where run = :run;

-- begin_again: give a run that sleeps other arguments.
update penstock.scheduled_job set args = :args where id = :run;

-- receive: mark events as received.
update penstock.workflow_event set received = true where run = :run and id = any(:ids::bigint[]);

-- delete_records: delete records of a run that has failed or was canceled.
delete from penstock.workflow_record
where run = :run and number = any(:numbers::bigint[])
  and exists (select from penstock.finished_job j where j.id = :run and j.state in ('failed', 'canceled'));

-- change_beginning: change the outcome of the first record of a run that has failed or was canceled.
update penstock.workflow_record set outcome = :outcome
where run = :run and number = 0
  and exists (select from penstock.finished_job j where j.id = :run and j.state in ('failed', 'canceled'));

-- unlearn: let a run know of nothing after a place.
update penstock.workflow_record set learned = null where run = :run and learned > :last;

-- find_received: the ids among these that are events of a run.
select id from penstock.workflow_event where run = :run and id = any(:ids::bigint[]) order by id;

-- copy_received: give a new run events that another has received, in their order.
insert into penstock.workflow_event (run, kind, name, key, payload, sent_at, received)
select :run, kind, name, key, payload, sent_at, true from penstock.workflow_event
where run = :other and id = any(:ids::bigint[]) order by id
returning id;

-- unreceive: let a run receive events again.
update penstock.workflow_event set received = false where run = :run and id = any(:ids::bigint[]);

-- inbox: the events that a run has not received yet, in their order.
select id, kind, name, payload, sent_at from penstock.workflow_event where run = :run and not received order by id;

-- open_inbox: these, for the run itself; what it was woken for is forgotten.
-- SQLite: forgets first.
delete from penstock.workflow_wake where run = :run;
select id, kind, name, payload, sent_at from penstock.workflow_event where run = :run and not received order by id;
-- PostgreSQL: one statement, so what it forgets is of events that it sees.
with heard as (delete from penstock.workflow_wake where run = :run)
select id, kind, name, payload, sent_at from penstock.workflow_event where run = :run and not received order by id;

-- {open_runs}: runs that have not ended, with their workflows.
select id, function from penstock.ready_job where ending is null
union all select id, function from penstock.scheduled_job where ending is null
union all select id, function from penstock.running_job where ending is null

-- stuck: workflows with runs that are parked, or since a time for events without a limit; how many of each.
-- Unbounded: it looks at all jobs that sleep for years, as such runs do.
select function, parked, count(*) as number from (
    select function, error like 'WorkflowParked: %' as parked from penstock.scheduled_job j
    where not waiting and run_at > :far and (error like 'WorkflowParked: %' or (error like 'Waits for %' and run_at < :until))
      and exists (select from penstock.workflow_record r where r.run = j.id and r.number = 0)
    limit :limit
) t group by function, parked order by function, parked;

-- active: workflows with runs that run, or wait; how many of each. So many scheduled jobs are looked at.
select function, waits, count(*) as number from (
    select function, false as waits from penstock.running_job where ending is null
    union all select function, error like 'Waits%' or error like 'WorkflowMismatch: %' as waits from (
        select function, error from penstock.scheduled_job where ending is null limit :limit
    ) few where error like 'Waits%' or error like 'WorkflowMismatch: %'
) j where function = any(:functions::text[]) group by function, waits;

-- patches: the changes of code that runs have taken up, with the unfinished runs that have, and that began before and have not.
-- Unbounded: it looks at all runs.
select t.name, t.workflow, t.since,
    (select count(*) from ({open_runs}) j where j.function = t.workflow and exists (
        select from penstock.workflow_record r where r.run = j.id and r.kind = 'patch' and r.function = t.name
    )) as with_it,
    (select count(*) from ({open_runs}) j where j.function = t.workflow and exists (
        select from penstock.workflow_record r where r.run = j.id and r.number = 0 and r.at <= t.since
    ) and not exists (
        select from penstock.workflow_record r where r.run = j.id and r.kind = 'patch' and r.function = t.name
    )) as without
from (
    select r.function as name, j.function as workflow, min(r.at) as since from penstock.workflow_record r
    join ({open_runs} union all select id, function from penstock.finished_job) j on j.id = r.run
    where r.kind = 'patch' group by r.function, j.function
) t order by t.since desc, t.name;

-- {open_run}: a run, with whether it has so many events that nobody has received.
select j.id as run, (
    select count(*) from (select from penstock.workflow_event e where e.run = j.id and not e.received limit :most) few
) >= :most as is_full

-- unfinished: those of these runs that have not ended, and whether they have so many events that nobody has received.
-- SQLite: one at a time.
{open_run} from (
    select id from penstock.ready_job where id = :run and ending is null
    union all select id from penstock.scheduled_job where id = :run and ending is null
    union all select id from penstock.running_job where id = :run and ending is null
) j;
-- PostgreSQL: any number at once.
{open_run} from (
    select id from penstock.ready_job where id = any(:run::uuid[]) and ending is null
    union all select id from penstock.scheduled_job where id = any(:run::uuid[]) and ending is null
    union all select id from penstock.running_job where id = any(:run::uuid[]) and ending is null
) j;

-- open_run: a run that has not ended.
select function, args, options from penstock.ready_job where id = :run and ending is null
union all select function, args, options from penstock.scheduled_job where id = :run and ending is null
union all select function, args, options from penstock.running_job where id = :run and ending is null;

-- find_keyed: the runs of a workflow that have a key and have not ended. A pool has one at most.
select k.job_id as run from penstock.pool p join penstock.job_key k on k.pool = p.name and k.key = :key
where exists (select from penstock.ready_job j where j.id = k.job_id and j.ending is null and j.function = :function)
   or exists (select from penstock.scheduled_job j where j.id = k.job_id and j.ending is null and j.function = :function)
   or exists (select from penstock.running_job j where j.id = k.job_id and j.ending is null and j.function = :function);

-- find_key: whether an event with a key was sent to a run.
select 1 from penstock.workflow_event where run = :run and name = :name and key = :key;

-- send: send an event to runs, unless one with its key was sent before.
-- SQLite: one at a time.
insert into penstock.workflow_event (run, kind, name, key, payload, sent_at)
values (:run, 'event', :name, :key, :payload, :now)
on conflict do nothing;
-- PostgreSQL: any number at once.
insert into penstock.workflow_event (run, kind, name, key, payload, sent_at)
select t.run, 'event', :name::text, :key::text, :payload::text, :now::timestamptz from unnest(:run::uuid[]) as t (run)
on conflict do nothing;

-- post: put the end of a job, or a request to cancel, into the inbox of a run.
insert into penstock.workflow_event (run, kind, name, payload, sent_at)
values (:run, :kind, :name, :payload, :now);

-- wake: have a worker look at the inboxes of runs.
-- SQLite: one at a time.
insert into penstock.workflow_wake (run) values (:run);
-- PostgreSQL: any number at once.
insert into penstock.workflow_wake (run) select * from unnest(:run::uuid[]);

-- any_wakes: whether anybody has something new.
select 1 from penstock.workflow_wake limit 1;

-- {decided}: whether code of a run that sleeps has something to do. It awaits so many ends of jobs, or one that failed.
(r.attempts <= 1 or exists (
    select from penstock.workflow_event e
    where e.run = r.run and not e.received and (e.kind <> 'job' or strpos(e.payload, '{"state": "success"') <> 1)
) or (select count(*) from penstock.workflow_event e where e.run = r.run and not e.received) >= r.attempts)

-- let_go_on: let runs go on that sleep and have something new; these, and the running ones that have.
-- SQLite: the ones that sleep first.
update penstock.scheduled_job set run_at = least(run_at, :now)
where not waiting and id in (select run from penstock.workflow_wake)
  and exists (select 1 from penstock.workflow_record r where r.run = id and r.number = 0 and {decided})
returning id as run, 0 as runs;
delete from penstock.workflow_wake where run not in (select id from penstock.running_job);
select distinct run, 1 as runs from penstock.workflow_wake;
-- PostgreSQL: one statement for all.
with gone as (
    update penstock.scheduled_job s set run_at = least(s.run_at, :now::timestamptz)
    where not s.waiting and s.id in (select w.run from penstock.workflow_wake w)
      and exists (select from penstock.workflow_record r where r.run = s.id and r.number = 0 and {decided})
    returning s.id as run
), heard as (
    delete from penstock.workflow_wake w where not exists (select from penstock.running_job j where j.id = w.run)
)
select run, false as runs from gone
union select w.run, true from penstock.workflow_wake w join penstock.running_job j on j.id = w.run;

-- cancel_begun: take back the requests to cancel runs that have begun and sleep: they learn of it in their inbox.
delete from penstock.cancel_request as c
where exists (select from penstock.workflow_record r where r.run = c.job_id and r.number = 0)
  and (exists (select from penstock.ready_job j where j.id = c.job_id and j.ending is null)
       or exists (select from penstock.scheduled_job j where j.id = c.job_id and j.ending is null))
returning job_id as run;

-- forget_cancel: forget the requests to cancel a run that has learned of it.
delete from penstock.cancel_request where job_id = :run;

-- refuse: note that the code of a program does not fit a run.
insert into penstock.workflow_refusal as w (run, function, refused) values (:run, :function, :refused)
on conflict (run) do update
set refused = case when strpos(w.refused, excluded.refused) > 0 then w.refused else w.refused || ' ' || excluded.refused end;

-- any_refused: whether code has refused a run that this program has not.
select 1 from penstock.workflow_refusal where function = any(:functions::text[]) and strpos(refused, :fingerprint) = 0 limit 1;

-- let_retry: let runs go on that other code has refused.
update penstock.scheduled_job set run_at = least(run_at, :now::timestamptz)
where not waiting and id in (
    select run from penstock.workflow_refusal where function = any(:functions::text[]) and strpos(refused, :fingerprint) = 0
)
returning id;

-- {over}: runs that are nowhere any more.
select b.run from (
    select run from penstock.workflow_record where number = 0 union select run from penstock.workflow_event
) b
where not exists (select from penstock.ready_job j where j.id = b.run)
  and not exists (select from penstock.scheduled_job j where j.id = b.run)
  and not exists (select from penstock.running_job j where j.id = b.run)
  and not exists (select from penstock.finished_job j where j.id = b.run)

-- over: some runs that are nowhere any more, as their status has expired.
-- Unbounded: it looks at all runs.
{over} limit :limit;

-- forget: forget runs.
-- SQLite: one statement for each table.
delete from penstock.workflow_record where run = any(:runs::uuid[]);
delete from penstock.workflow_event where run = any(:runs::uuid[]);
delete from penstock.workflow_state where run = any(:runs::uuid[]);
delete from penstock.workflow_refusal where run = any(:runs::uuid[]);
-- PostgreSQL: one statement for all.
with records as (
    delete from penstock.workflow_record where run = any(:runs::uuid[])
), events as (
    delete from penstock.workflow_event where run = any(:runs::uuid[])
), states as (
    delete from penstock.workflow_state where run = any(:runs::uuid[])
)
delete from penstock.workflow_refusal where run = any(:runs::uuid[]);
