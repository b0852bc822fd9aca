-- space: the folder of this database, and its secret.
select name, secret from penstock.file_space;

-- make_space: choose them, unless they are there.
insert into penstock.file_space (id, name, secret) values (1, :name, :secret) on conflict (id) do nothing returning id;

-- add: add a file.
insert into penstock.file (id, created_at, key, storage_id, size, digest, content_type, creator)
values (:id, :created_at, :key, :storage_id, :size, :digest, :content_type, :creator)
returning id;

-- find: a file.
select id, created_at, key, storage_id, size, digest, content_type, creator from penstock.file where id = :id;

-- find_url: a file by the secret part of its URL.
select id, created_at, key, storage_id, size, digest, content_type, creator from penstock.file
where storage_id = :storage_id;

-- page: files, newest first, below an id.
select id, created_at, key, storage_id, size, digest, content_type, creator from penstock.file
where id < :below order by id desc limit :limit;

-- existing: which of some files are there.
select id from penstock.file where id = any(:ids::text[]);

-- remove: delete a file.
delete from penstock.file where id = :id returning key;

-- owe: have bytes deleted.
insert into penstock.file_removal (key) values (:key) on conflict (key) do nothing returning key;

-- owed: the names of some bytes that are to be deleted.
select key from penstock.file_removal order by key limit :limit;

-- settle: forget bytes that are gone.
delete from penstock.file_removal where key = any(:keys::text[]);

-- use_token: note that a token was used; nothing if it was before.
insert into penstock.file_token (id, expires_at) values (:id, :expires_at) on conflict (id) do nothing returning id;

-- unclaimed: files of before a time that were not found to be claimed, oldest first.
select id from penstock.file where not claimed and created_at <= :before order by created_at limit :limit;

-- claim: note that files are claimed.
update penstock.file set claimed = true where id = any(:ids::text[]);

-- kept: which of some names of bytes belong to a file.
select key from penstock.file where key = any(:keys::text[]);

-- prune: forget used tokens whose time is over, but for rows that others have locked.
delete from penstock.file_token where id in (
    select id from penstock.file_token where expires_at <= :now order by expires_at limit :limit for update skip locked
);

-- any_old: whether there are such tokens.
-- SQLite: looking takes no lock.
select 1 from penstock.file_token where expires_at <= :now limit 1;
