-- begin: record that somebody is about to do something.
insert into penstock.audit (id, at, who, role, act, about, kept_until)
values (:id, :now, :who, :role, :act, :about, :kept_until);

-- end: record how it ended.
update penstock.audit set outcome = :outcome where id = :id;

-- list: acts of some person and some kind, newest first, those below one id.
-- Unbounded: of acts that are rare it reads all.
select id, at, who, role, act, about, outcome from penstock.audit
where id < :below and (:who::text is null or strpos(who, :who) > 0) and (:act::text is null or strpos(act, :act) > 0)
order by id desc limit :limit;

-- prune: forget old acts.
delete from penstock.audit where id in (
    select id from penstock.audit where kept_until <= :now order by kept_until limit :limit
);

-- any_old: whether there are such acts.
select 1 from penstock.audit where kept_until <= :now limit 1;
