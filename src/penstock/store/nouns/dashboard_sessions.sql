-- create: keep a session.
insert into penstock.dashboard_session (id, content, expires_at) values (:id, :content, :expires_at);

-- find: the content of a session that has not expired.
select content from penstock.dashboard_session where id = :id and expires_at > :now;

-- take: forget a session; its content, if it has not expired.
delete from penstock.dashboard_session where id = :id returning case when expires_at > :now then content end as content;

-- prune: forget expired sessions.
delete from penstock.dashboard_session where id in (
    select id from penstock.dashboard_session where expires_at <= :now order by expires_at limit :limit
);

-- any_old: whether there are such sessions.
select 1 from penstock.dashboard_session where expires_at <= :now limit 1;
