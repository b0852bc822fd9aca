-- declared: the functions that programs have declared, and what kind they are.
select name, kind from penstock_function;

-- declare: make a function known; one that was of another kind is of this one from now on.
-- Differs: one statement a function.
insert into penstock_function (name, kind) values (:name, :kind) on conflict (name) do update set kind = excluded.kind;
