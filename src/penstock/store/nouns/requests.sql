-- find: the result of a request that took effect before.
select result from penstock.session_request where session = :session and request = :request and call = :call;

-- record: record the result of a request; no row if it is there already.
insert into penstock.session_request (session, request, call, result, kept_until)
values (:session, :request, :call, :result, :kept_until)
on conflict do nothing
returning request;

-- shown: which of some requests have taken effect.
with t (session, request, call) as (select * from unnest(:session::text[], :request::bigint[], :call::bigint[]))
select r.session, r.request, r.call from penstock.session_request r
join t on r.session = t.session and r.request = t.request and r.call = t.call;

-- prune: forget requests that nobody sends again, but for rows that others have locked.
delete from penstock.session_request where (session, request, call) in (
    with gone as materialized (
        select session, request, call from penstock.session_request where kept_until <= :now
        order by kept_until limit :limit for update skip locked
    ) select session, request, call from gone
);

-- any_old: whether there are such requests.
-- SQLite: looking takes no lock.
select 1 from penstock.session_request where kept_until <= :now limit 1;
