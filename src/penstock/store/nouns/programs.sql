-- declared: the functions that programs have declared, with their kinds.
select name, kind from penstock.function;

-- declare: make functions known; one that was of another kind is of this one from now on.
-- SQLite: one statement a function.
insert into penstock.function (name, kind) values (:name, :kind) on conflict (name) do update set kind = excluded.kind;
-- PostgreSQL: one statement for any number of functions, in one order, so that programs that start together do not wait for
-- each other in a circle.
insert into penstock.function as f (name, kind)
select t.name, t.kind from unnest(:name::text[], :kind::text[]) as t (name, kind) order by t.name
on conflict (name) do update set kind = excluded.kind where f.kind <> excluded.kind;
