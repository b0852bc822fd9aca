-- add: make a task known, if none of its name is; all of its rows are to be looked at.
insert into penstock_task
    (name, function, kind, pool, priority, options, resets, history, version, signature, spec, declared_at, reconciling)
values (:name, :function, :kind, :pool, :priority, :options, :resets, :history, :version, :signature, :spec, :now, :reconciling)
on conflict (name) do nothing returning id;

-- declare: what is declared of a task now; one of which a higher version was declared stays as it is. The interests that
-- it has had are known by their numbers also when they are dropped, unless they were about another table.
update penstock_task set
    function = :function, kind = :kind, pool = :pool, priority = :priority, options = :options, resets = :resets,
    history = :history, version = :version, signature = :signature, spec = :spec, declared_at = :now,
    reconciling = coalesce(:reconciling, reconciling),
    earlier = iif(
        spec -> 'table' = :spec -> 'table' and spec -> 'key' = :spec -> 'key', (
            select json_group_array(n.id) from (
                select e.value as id from json_each(penstock_task.earlier) e
                union select i.id from penstock_interest i where i.name = 'task:' || :name
            ) n
        ), '[]'
    )
where name = :name and version <= :version;

-- unready: jobs of a task that are ready are scheduled again (SQLite only: the first part of redeclare).
-- Unbounded: it reads all jobs that are ready.
insert into penstock_scheduled_job (id, pool, function, kind, args, priority, rank, run_at, options, on_complete, attempt,
    enqueued_at, error, attempts)
select id, pool, function, kind, args, priority, rank, run_at, options, on_complete, attempt, enqueued_at, error, attempts
from penstock_ready_job where options ->> 'task' = :task and ending is null;

-- unready_taken: take out the jobs that are scheduled again (SQLite only: the second part of redeclare).
-- Unbounded: it reads all jobs that are ready.
delete from penstock_ready_job where options ->> 'task' = :task and ending is null;

-- redeclare: let the pending jobs of a task run as it is declared now: the function, in the pool, through the gate. Those
-- that are ready are scheduled again. Keys that the gate of another declaration had are of no use: `unkeyed` says so.
-- Differs: unready has scheduled those that are ready.
-- Unbounded: it reads all pending jobs.
update penstock_scheduled_job as j
set pool = g.pool, function = g.function, kind = g.kind, priority = g.priority,
    rank = g.rank + iif(j.keeps_turn, 0, penstock_microseconds(j.run_at) - penstock_microseconds(g.due_at)),
    gated = g.gate is not null and (not :unkeyed or g.gate = ''), waiting = 0,
    concurrency_key = iif(:unkeyed, '', coalesce(g.gate, '')), place = g.place
from penstock_task_job g
where j.options ->> 'task' = :task and g.task = :task and g.key = j.args ->> 'key' and g.id = j.id;

-- unkey: rows of a task are run beside each other until it is known which of them have the same key, as that is another
-- column now, or none.
-- Unbounded: it reads all records of the task.
update penstock_task_record set concurrency_key = null where task = :task and concurrency_key is not null;

-- follow: jobs of rows that are to run again do so as their tasks are declared now, if that was while they ran.
-- Differs: takes rows as JSON.
update penstock_scheduled_job as j
set pool = g.pool, function = g.function, kind = g.kind, priority = g.priority,
    rank = g.rank + iif(j.keeps_turn, 0, penstock_microseconds(j.run_at) - penstock_microseconds(g.due_at)),
    gated = g.gate is not null, concurrency_key = coalesce(g.gate, ''), place = g.place
from json_each(:rows) k join penstock_task_job g on g.task = k.value ->> 0 and g.key = k.value ->> 1
where j.id = g.id and (j.pool, j.function, j.kind, j.priority) <> (g.pool, g.function, g.kind, g.priority);

-- list: all tasks by name, with the numbers of their interests: those that there are, that of the one which they are
-- declared with, and those that they have had.
-- Unbounded: it reads them all.
select t.id, t.name, t.function, t.kind, t.pool, t.priority, t.options, t.resets, t.history, t.version, t.signature, t.spec,
       (select json_group_array(i.id) from penstock_interest i where i.name = 'task:' || t.name) as interests,
       t.declared_at, t.paused, t.held_until, t.reconciling, t.reconciled_at, t.begun, (
           select i.id from penstock_interest i where i.name = 'task:' || t.name and i.digest = t.spec ->> 'interest'
       ) as interest, t.earlier
from penstock_task t order by t.name;

-- record: write what rows have changed, of each once; those to be run have one generation more. What is only gone is
-- written where there is a record. A row that has changed before its first run has still only entered. For how long a run
-- may be put off counts from the first change since the last one began.
-- Differs: the rows are one parameter, as JSON, of which each is spelled once, and not once for each of its columns.
with g as materialized (select value from json_each(:rows))
insert into penstock_task_record as r (task, key, id, generation, live, idle, change, before, after, concurrency_key,
    place, changed_at, due_at, latest_at, gone, forget_at, for_version)
select g.value ->> 0, g.value ->> 1, penstock_bytes(g.value ->> 2), 1, g.value ->> 3, g.value ->> 3, g.value ->> 4,
       g.value ->> 5, g.value ->> 6, g.value ->> 7, g.value ->> 8, g.value ->> 9, g.value ->> 10, g.value ->> 11,
       g.value ->> 12, g.value ->> 13, g.value ->> 14
from g
where g.value ->> 3 or exists (
    select 1 from penstock_task_record o where o.task = g.value ->> 0 and o.key = g.value ->> 1
)
on conflict (task, key) do update set
    generation = r.generation + excluded.live,
    live = r.live or excluded.live,
    idle = not r.live,
    change = case when not excluded.live then r.change
                  when r.live and r.change = 'enter' and excluded.change = 'change'
                      and not exists (select 1 from penstock_running_job u where u.id = r.id) then r.change
                  else excluded.change end,
    before = case when excluded.live then excluded.before else r.before end,
    after = case when excluded.live or excluded.gone is null then excluded.after else r.after end,
    concurrency_key = case when excluded.live then excluded.concurrency_key else r.concurrency_key end,
    place = case when excluded.live then excluded.place else r.place end,
    changed_at = case when excluded.live then excluded.changed_at else r.changed_at end,
    due_at = case when not excluded.live then r.due_at
                  when r.live and r.latest_at is not null and not exists (
                      select 1 from penstock_running_job u where u.id = r.id and u.args ->> 'generation' = r.generation
                  ) then min(excluded.due_at, r.latest_at)
                  else excluded.due_at end,
    latest_at = case when not excluded.live then r.latest_at
                     when r.live and r.latest_at is not null and not exists (
                         select 1 from penstock_running_job u where u.id = r.id and u.args ->> 'generation' = r.generation
                     ) then r.latest_at
                     else excluded.latest_at end,
    gone = excluded.gone,
    forget_at = case when excluded.gone is not null then coalesce(r.forget_at, excluded.forget_at) end,
    for_version = case when excluded.live then excluded.for_version else r.for_version end
where excluded.for_version = -1 or r.version < excluded.for_version
returning task, key, id, idle, live, generation;

-- postpone: jobs in ready whose rows are due later now, or have a key now, are scheduled again (SQLite only: part of launch).
insert into penstock_scheduled_job
    (id, pool, function, kind, args, priority, rank, run_at, options, attempt, enqueued_at, error, attempts, gated)
select j.id, j.pool, j.function, j.kind, j.args, j.priority, j.rank, g.due_at, j.options, j.attempt, j.enqueued_at, j.error,
       j.attempts, g.gate is not null
from json_each(:rows) k join penstock_task_job g on g.task = k.value ->> 0 and g.key = k.value ->> 1
join penstock_ready_job j on j.id = g.id
where not k.value ->> 2 and (g.due_at > :now or g.gate is not null)
returning id;

-- postponed: take them out of ready (SQLite only: the other half of postpone).
delete from penstock_ready_job where id in (select penstock_bytes(value) from json_each(:ids));

-- informed: jobs in ready learn what has changed since of their rows (SQLite only: part of launch).
update penstock_ready_job as j set args = g.args, attempt = case when g.resets then 0 else j.attempt end
from json_each(:rows) k join penstock_task_job g on g.task = k.value ->> 0 and g.key = k.value ->> 1
where not k.value ->> 2 and j.id = g.id;

-- put_off: scheduled jobs learn what has changed since of their rows, and when they are due (SQLite only: part of launch).
-- Those that are due later now wait no more at their gate; who resumes the task is not to take them for ones that only the
-- hold has put off.
update penstock_scheduled_job as j
set args = g.args, attempt = case when g.resets then 0 else j.attempt end, waiting = j.waiting and g.due_at <= :now,
    run_at = case when j.waiting and g.due_at <= :now then j.run_at else g.due_at end,
    rank = case when j.waiting and g.due_at <= :now then j.rank else g.rank end,
    place = case when j.waiting and g.due_at <= :now then j.place else g.place end, keeps_turn = 0,
    error = case when g.due_at <= :now then j.error else nullif(j.error, :held) end,
    gated = j.gated or g.gate is not null,
    concurrency_key = case when j.gated or g.gate is not null then coalesce(g.gate, '') else j.concurrency_key end
from json_each(:rows) k join penstock_task_job g on g.task = k.value ->> 0 and g.key = k.value ->> 1
where not k.value ->> 2 and j.id = g.id;

-- launch: see to it that there is a pending job for the last generation of some rows: a new one for those that are idle.
-- Differs: takes rows as JSON, and makes those jobs only that are due later, or pass a gate.
insert into penstock_scheduled_job
    (id, pool, function, kind, args, priority, rank, run_at, options, attempt, enqueued_at, attempts, gated, waiting,
     concurrency_key, place)
select j.id, j.pool, j.function, j.kind, j.args, j.priority, j.rank, j.due_at, j.options, 0, :now, j.attempts,
       j.gate is not null, j.gate is not null and j.due_at <= :now, coalesce(j.gate, ''), j.place
from json_each(:rows) k join penstock_task_job j on j.task = k.value ->> 0 and j.key = k.value ->> 1
where k.value ->> 2 and (j.due_at > :now or j.gate is not null);

-- launch_due: the same for those that are due (SQLite only: part of launch).
insert into penstock_ready_job
    (id, pool, function, kind, args, priority, rank, run_at, options, attempt, enqueued_at, attempts)
select j.id, j.pool, j.function, j.kind, j.args, j.priority, j.rank, j.due_at, j.options, 0, :now, j.attempts
from json_each(:rows) k join penstock_task_job j on j.task = k.value ->> 0 and j.key = k.value ->> 1
where k.value ->> 2 and j.due_at <= :now and j.gate is null order by j.rank;

-- forgotten: the last ends of jobs that begin anew are a part of their history (SQLite only: part of launch).
delete from penstock_finished_job where id in (
    select r.id from json_each(:rows) k
    join penstock_task_record r on r.task = k.value ->> 0 and r.key = k.value ->> 1 where k.value ->> 2
);

-- uncanceled: requests to cancel that came before a change are not about it, and are forgotten (SQLite only: part of launch).
delete from penstock_cancel_request where job_id in (
    select r.id from json_each(:rows) k
    join penstock_task_record r on r.task = k.value ->> 0 and r.key = k.value ->> 1
    where not exists (select 1 from penstock_running_job j where j.id = r.id)
);

-- pending: which of some jobs are pending.
-- Differs: there is one writer, who holds them all.
select id from penstock_ready_job where id in (select penstock_bytes(value) from json_each(:ids))
union all
select id from penstock_scheduled_job where id in (select penstock_bytes(value) from json_each(:ids));

-- ended: jobs of tasks have ended, or are to run again: those whose rows have changed since they began.
-- Differs: takes rows as JSON.
select r.task, r.key, g.value ->> 3
from json_each(:rows) g join penstock_task_record r on r.task = g.value ->> 0 and r.key = g.value ->> 1
where r.generation > g.value ->> 2 and not (
    g.value ->> 3 and r.generation = (g.value ->> 2) + 1 and r.for_version between 0 and g.value ->> 4
);

-- idle: for rows whose jobs have ended, and which have not changed since, there is none any more.
-- Differs: takes the same as `ended`, and does the other half of it.
update penstock_task_record as r
set live = case when g.value ->> 3 then 0 else r.live end, latest_at = case when g.value ->> 3 then r.latest_at end,
    version = max(r.version, g.value ->> 4)
from json_each(:rows) g
where r.task = g.value ->> 0 and r.key = g.value ->> 1 and (
    r.generation <= g.value ->> 2
    or (g.value ->> 3 and r.generation = (g.value ->> 2) + 1 and r.for_version between 0 and g.value ->> 4)
);

-- find: the record of a row.
select task, key, id, generation, live, change, before, after, changed_at, due_at, gone
from penstock_task_record where task = :task and key = :key;

-- signature: filter and watch of a task as they are kept.
select signature from penstock_task where id = :task;

-- hold: let none of a task's jobs start until a time, or until a later one that was set before.
update penstock_task set held_until = max(coalesce(held_until, ''), :until) where id = :task;

-- held: the tasks of which no jobs start now, and until when.
-- Unbounded: it reads them all.
select id, paused, held_until from penstock_task where paused or held_until > :now;

-- pause: let none of a task's jobs start, or let them again.
update penstock_task set paused = :paused where name = :name returning id;

-- release: jobs of a task that were put off while it was held are due now; so many at a time.
update penstock_scheduled_job
set run_at = :now,
    rank = rank - case when keeps_turn then 0 else penstock_microseconds(run_at) - penstock_microseconds(:now) end
where id in (
    select s.id from penstock_scheduled_job s
    where not s.waiting and s.run_at > :now and s.error = :held and s.options ->> 'task' = :task
    order by s.run_at, s.id limit :limit
)
returning id;

-- mark: a running job is done, as its handler says; nothing if the lease does not hold this attempt of it any more.
update penstock_running_job set marked = 1 where id = :id and lease = :lease and started_at = :started_at;

-- marked: which of the jobs that run under a lease are done, as their handlers have said.
-- Differs: there is one writer, and who asks waits for the turn to write.
select id, marked from penstock_running_job
where id in (select penstock_bytes(value) from json_each(:ids)) and lease = :lease;

-- failed: attempts of a task have failed at these times; the times of the last ones.
update penstock_task set failures = (
    select json_group_array(f.at) from (
        select value as at from json_each(coalesce(failures, '[]'))
        union all select value from json_each(:times) order by 1 desc limit :most
    ) f
) where id = :task returning failures;

-- open: let none of a task's jobs start until a time, and forget what failed; nothing if another one was quicker.
update penstock_task set held_until = max(coalesce(held_until, ''), :until), failures = null
where id = :task and failures is not null returning id;

-- generations: of which of their changes the records of rows of one task are.
-- Differs: the keys are JSON.
select key, generation from penstock_task_record where task = :task and key in (select value from json_each(:keys));

-- records: what is kept of some rows.
select key, after, gone from penstock_task_record
where task = :task and key in (select value from json_each(:keys));

-- slice: what is kept of rows in the order of their keys, how the jobs have ended of those that have, whether one runs for
-- the last change of its row, and which that was.
select r.key, r.after, r.gone, f.state,
       exists (select 1 from penstock_running_job u where u.id = r.id and u.args ->> 'generation' = r.generation),
       r.change, r.before, r.version
from penstock_task_record r left join penstock_finished_job f on f.id = r.id
where r.task = :task and r.key > :after order by r.key limit :limit;

-- progress: how far looking at the rows of a task has come; NULL once it is done. Not if it was declared
-- anew meanwhile, or somebody has begun anew with them.
update penstock_task
set reconciling = :reconciling, begun = begun + :begins,
    reconciled_at = case when :reconciling is null then :now else reconciled_at end
where id = :task and begun = :begun and declared_at = :declared_at and version = :version and signature = :signature
returning id;

-- forget: forget the oldest records whose time is over.
-- Differs: their jobs go with `ends`.
delete from penstock_task_record where (task, key) in (
    select task, key from penstock_task_record where forget_at <= :now and not live order by forget_at limit :limit
) returning id;

-- ends: forget how jobs have ended (SQLite only: part of forget).
delete from penstock_finished_job where id in (select penstock_bytes(value) from json_each(:ids));
