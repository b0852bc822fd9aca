-- declared: the functions that programs have declared, with their kinds.
select name, kind from penstock.function;

-- declare: make functions known; one that was of another kind is of this one from now on.
insert into penstock.function as f (name, kind) select * from unnest(:name::text[], :kind::text[])
on conflict (name) do update set kind = excluded.kind where f.kind <> excluded.kind;

-- list: what all programs have declared.
select noun, name, program, spec from penstock.declaration order by noun, name, program;

-- lock: keep other programs from declaring until the transaction ends.
-- SQLite: there is one writer.
select 1;
-- PostgreSQL: readers go on.
lock table penstock.declaration in share row exclusive mode;

-- put: store declarations of a program. A program with a name takes over those of programs without one.
-- SQLite: one statement a declaration.
delete from penstock.declaration where noun = :noun and name = :name and program = '';
insert into penstock.declaration (noun, name, program, spec) values (:noun, :name, :program, :spec)
on conflict (noun, name, program) do update set spec = excluded.spec;
-- PostgreSQL: one statement for any number of them.
with taken as (
    delete from penstock.declaration d using unnest(:noun::text[], :name::text[]) as t (noun, name)
    where d.noun = t.noun and d.name = t.name and d.program = '' and :program::text <> ''
)
insert into penstock.declaration (noun, name, program, spec)
select t.noun, t.name, :program, t.spec from unnest(:noun, :name, :spec::text[]) as t (noun, name, spec)
on conflict (noun, name, program) do update set spec = excluded.spec;

-- forget: forget all that a program has declared.
delete from penstock.declaration where program = :program returning name;
