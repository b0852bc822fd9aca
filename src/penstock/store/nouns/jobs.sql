-- {found}: jobs that meet a filter, newest first, those below one id.
select * from (
    select * from (select * from (
        {ready} from penstock.ready_job where coalesce(:state, 'pending') in ('pending', 'ready', 'completing')
    ) j {wanted}) few
    union all
    select * from (select * from (
        {scheduled} from penstock.scheduled_job
        where coalesce(:state, 'pending') in ('pending', 'ready', 'scheduled', 'retrying', 'completing')
    ) j {wanted}) few
    union all
    select * from (select * from (
        {running} from penstock.running_job where coalesce(:state, 'running') in ('running', 'completing')
    ) j {wanted}) few
    union all
    select * from (select * from (
        {ended} from penstock.finished_job where /* by id */ expires_at > :now and coalesce(:state, 'success') in ('success', 'failed', 'canceled', 'skipped')
    ) j {wanted}) few
) job order by id desc limit :limit

-- {failed}: failed jobs that meet a filter, newest first, those below one id.
select * from (
    {ended} from penstock.finished_job where state = 'failed' and /* by id */ expires_at > :now
) j {wanted}

-- {retrying}: retrying jobs that meet a filter, newest first, those below one id.
select * from (
    {scheduled} from penstock.scheduled_job where attempts is not null and ending is null and not waiting
) j {wanted}

-- {wanted}: those of them that are in one place.
where {filter} and {on_complete} and id < :below and id >= :down_to order by id desc limit :limit

-- {filter}: the jobs that a filter means.
(:state::text is null or state = :state or stage = :state) and (:pool::text is null or pool = :pool)
and (:function::text is null or function = :function)
and (:prefix::text is null or strpos(function, :prefix) = 1)
and (:name::text is null or coalesce(options::jsonb ->> 'name', function) = :name)
and (:key::text is null or options::jsonb ->> 'key' = :key)
and (:concurrency_key::text is null or options::jsonb ->> 'concurrency_key' = :concurrency_key)
and (:error::text is null or strpos(error, :error) > 0)
and (:since::timestamptz is null or coalesce(finished_at, enqueued_at) >= :since)
and (:before::timestamptz is null or coalesce(finished_at, enqueued_at) < :before)

-- {on_complete}: the part of a filter that is about errors of on_complete.
(:on_complete_error::text is null or strpos(on_complete_error, :on_complete_error) > 0)

-- {named}: the jobs whose options contain a text, or their arguments if these are looked through, too.
(strpos(options, :text) > 0 or (:in_args::boolean and strpos(args, :text) > 0))

-- {ready}: a job that may start, as it is listed.
{pending}, case when ending is null then 'ready' else 'completing' end as stage

-- {scheduled}: a job that starts later, or waits at its gate, as it is listed.
{pending}, {stage} as stage

-- {stage}: of a job that is pending and not in the queue: what it waits for.
case when ending is not null then 'completing' when waiting then 'ready'
    when attempts is not null then 'retrying' else 'scheduled' end

-- {sought}: the jobs that a text means.
(strpos(error, :text) > 0 or options::jsonb ->> 'key' = :text or options::jsonb ->> 'concurrency_key' = :text
    or options::jsonb ->> 'name' = :text)

-- {pending}: the columns of a pending job.
select id, function, args, case when ending is null then 'pending' else 'completing' end as state, attempt, run_at,
       enqueued_at, (ending::jsonb ->> 'started_at')::timestamptz as started_at, null::timestamptz as finished_at,
       null::text as result, error, null::text as traceback, pool, null::text as on_complete_error, attempts, priority,
       options, on_complete, null::text as progress, ending::jsonb ->> 'attempts' as on_complete_attempts, {published}

-- {running}: a running job as it is listed.
select id, function, args, case when ending is null then 'running' else 'completing' end as state, attempt, run_at,
       enqueued_at,
       case when ending is null then started_at else (ending::jsonb ->> 'started_at')::timestamptz end as started_at,
       null::timestamptz as finished_at, null::text as result, error, null::text as traceback, pool,
       null::text as on_complete_error, attempts, priority, options, on_complete, progress,
       ending::jsonb ->> 'attempts' as on_complete_attempts, {published},
       case when ending is null then 'running' else 'completing' end as stage

-- {ended}: a job that has ended as it is listed.
select id, function, args, state, attempt, run_at, enqueued_at, started_at, finished_at, result, error, traceback, pool,
       on_complete_error, attempts, priority, options, on_complete, null::text as progress, on_complete_attempts, {published},
       state as stage

-- {published}: the state that a job has published last, if it is a run of a workflow.
(select w.published from penstock.workflow_state w where w.run = id) as published

-- find: some jobs, wherever they stand.
-- SQLite: one at a time, as no way leads there and back.
{ready} from penstock.ready_job where id = :id
union all {scheduled} from penstock.scheduled_job where id = :id
union all {running} from penstock.running_job where id = :id
union all {ended} from penstock.finished_job where id = :id and expires_at > :now;
-- PostgreSQL: any number at once.
{ready} from penstock.ready_job where id = any(:id::uuid[])
union all {scheduled} from penstock.scheduled_job where id = any(:id::uuid[])
union all {running} from penstock.running_job where id = any(:id::uuid[])
union all {ended} from penstock.finished_job where id = any(:id::uuid[]) and expires_at > :now;

-- list: jobs that meet a filter, newest first, those below one id.
-- Unbounded: of jobs that are rare it reads all.
{found};

-- horizon: the oldest of so many jobs that have ended and lie below one id; none if there are fewer.
select id from penstock.finished_job where id < :below order by id desc limit 1 offset :most;

-- seek: of the newest jobs in each place those with a text as their key or name, or in their error; newest first.
select * from (
    {ready} from penstock.ready_job where id in (
        select id from (select id, error, options from penstock.ready_job order by id desc limit :most) few
        where {sought} order by id desc limit :limit
    )
    union all
    {scheduled} from penstock.scheduled_job where id in (
        select id from (select id, error, options from penstock.scheduled_job order by id desc limit :most) few
        where {sought} order by id desc limit :limit
    )
    union all
    {running} from penstock.running_job where id in (
        select id from (select id, error, options from penstock.running_job order by id desc limit :most) few
        where {sought} order by id desc limit :limit
    )
    union all
    {ended} from penstock.finished_job where expires_at > :now and id in (
        select id from (select id, error, options from penstock.finished_job order by id desc limit :most) few
        where {sought} order by id desc limit :limit
    )
) job order by id desc limit :limit;

-- naming: jobs whose options, or arguments, contain a text, oldest first, those from one id on.
-- Unbounded: it reads all jobs since then.
select * from (
    {ready} from penstock.ready_job where id >= :first and {named}
    union all {scheduled} from penstock.scheduled_job where id >= :first and {named}
    union all {running} from penstock.running_job where id >= :first and {named}
    union all {ended} from penstock.finished_job where id >= :first and {named} and expires_at > :now
) job order by id limit :limit;

-- matching: the same, with ids only.
-- Unbounded: of jobs that are rare it reads all.
select id from ({found}) found order by id desc;

-- list_failed: the same of failed jobs only, which have an index of their own.
{failed};

-- matching_failed: of these the ids.
select id from ({failed}) found order by id desc;

-- list_retrying: the same of retrying jobs only, which have an index too.
{retrying};

-- matching_retrying: of these the ids.
select id from ({retrying}) found order by id desc;

-- count_failed: the number of failed jobs; of many it counts only some.
select count(*) as number from (
    select from penstock.finished_job where state = 'failed' and /* by id */ expires_at > :now limit :most
) few;

-- count: the number of jobs in each state. A job that waits at a gate could start, and counts as ready.
-- Unbounded: it reads whole indexes.
select 'ready' as place, (select count(*) from penstock.ready_job)
       + (select count(*) from penstock.scheduled_job where waiting) as number
union all select 'scheduled', count(*) from penstock.scheduled_job where not waiting and attempts is null
union all select 'retrying', count(*) from penstock.scheduled_job where not waiting and attempts is not null
union all select 'running', count(*) from penstock.running_job
union all select state, count(*) from penstock.finished_job where expires_at > :now group by state;

-- count_some: the number of unfinished jobs in each stage, and of failed jobs. Of many it counts only some: of scheduled jobs
-- the ones that start first.
select 'ready' as place, (select count(*) from (select from penstock.ready_job where ending is null limit :most) few)
       + (select count(*) from (select from penstock.scheduled_job where waiting limit :most) few) as number
union all select stage, count(*) from (
    select {stage} as stage from penstock.scheduled_job where not waiting order by run_at, id limit :most
) few group by stage
union all select 'running', count(*) from (select from penstock.running_job where ending is null limit :most) few
union all select 'failed', count(*) from (
    select from penstock.finished_job where state = 'failed' and /* by id */ expires_at > :now limit :most
) few;

-- request_cancel: ask that jobs be canceled.
insert into penstock.cancel_request (requested_at, job_id) select :now::timestamptz, t.* from unnest(:id::uuid[]) as t;

-- request_cancel_all: ask that all jobs be canceled that meet a filter and have not ended.
-- Unbounded: it reads all that have not.
insert into penstock.cancel_request (job_id, requested_at)
select id, :now::timestamptz
from (
    select id, pool, function, options, error, enqueued_at, null::timestamptz as finished_at, 'pending' as state,
           'ready' as stage
    from penstock.ready_job where ending is null
    union all
    select id, pool, function, options, error, enqueued_at, null::timestamptz, 'pending', {stage}
    from penstock.scheduled_job where ending is null
    union all
    select id, pool, function, options, error, enqueued_at, null::timestamptz, 'running', 'running'
    from penstock.running_job where ending is null
) job
where {filter};

-- any_cancelable: whether a request to cancel stands for a pending job, or is old.
select 1 from penstock.cancel_request c
where c.requested_at < :before
   or exists (select from penstock.ready_job j where j.id = c.job_id and j.ending is null)
   or exists (select from penstock.scheduled_job j where j.id = c.job_id and j.ending is null)
limit 1;

-- cancel_running: ids of running jobs for which a request to cancel stands.
select distinct c.job_id from penstock.cancel_request c join penstock.running_job j on j.id = c.job_id;

-- clear_old_requests: forget old requests for jobs that are nowhere.
delete from penstock.cancel_request as c
where c.requested_at < :before
  and not exists (select from penstock.ready_job j where j.id = c.job_id)
  and not exists (select from penstock.scheduled_job j where j.id = c.job_id)
  and not exists (select from penstock.running_job j where j.id = c.job_id);
