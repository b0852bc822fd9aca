-- add: keep a pair of keys.
insert into penstock.signing_key (id, created_at, public, secret) values (:id, :now, :public, :secret) returning id;

-- list: all pairs, the newest first.
-- Unbounded: it reads all.
select id, created_at, public, secret from penstock.signing_key order by created_at desc, id desc;

-- forget: forget pairs.
delete from penstock.signing_key where id = any(:ids::text[]) returning id;
