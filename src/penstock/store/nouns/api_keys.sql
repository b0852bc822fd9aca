-- create: keep a key under a name that none has; no row if one has it.
insert into penstock.api_key (name, hash, scopes, created_at, expires_at)
values (:name, :hash, :scopes, :now, :expires_at)
on conflict (name) do nothing
returning name;

-- find: the key with a hash.
select name, scopes, created_at, expires_at from penstock.api_key where hash = :hash;

-- list: all keys, by name.
-- Unbounded: it reads all keys.
select name, scopes, created_at, expires_at from penstock.api_key order by name;

-- revoke: forget a key.
delete from penstock.api_key where name = :name returning name;
