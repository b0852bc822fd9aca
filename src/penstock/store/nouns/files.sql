-- {file}: the columns of a file.
select id, created_at, key, storage_id, size, digest, content_type, creator, component from penstock.stored_file f

-- {there}: whether a file is not deleted.
not exists (select from penstock.file_removal r where r.file = f.id)

-- space: the folder of this database, and its secret.
select name, secret from penstock.file_space;

-- add: add a file.
insert into penstock.stored_file (id, created_at, key, storage_id, size, digest, content_type, creator, claimed, component)
values (:id, :created_at, :key, :storage_id, :size, :digest, :content_type, :creator, :claimed, :component)
returning id;

-- find: a file.
{file} where id = :id and {there};

-- find_url: a file by the secret part of its URL.
{file} where storage_id = :storage_id and {there};

-- page: files of some type and component, newest first, below an id.
-- Unbounded: of types that are rare it reads all.
{file} where id < :below and (:component::text is null or component = :component)
  and (:type::text is null or strpos(content_type, :type) > 0) and {there}
order by id desc limit :limit;

-- existing: which of some files are there.
select id from penstock.stored_file f where id = any(:ids::text[]) and {there};

-- remove: note that a file is deleted; nothing if there is none.
insert into penstock.file_removal (file)
select id from penstock.stored_file f where id = :id and {there}
on conflict (file) do nothing returning file;

-- owed: some files that are deleted, whose bytes are to go; no name of bytes for one that was deleted twice at a time.
select r.file, f.key from penstock.file_removal r left join penstock.stored_file f on f.id = r.file
order by r.file limit :limit;

-- settle: forget files whose bytes are gone.
delete from penstock.stored_file where id = any(:ids::text[]);

-- forget_removals: forget that they were deleted.
delete from penstock.file_removal where file = any(:ids::text[]);

-- use_token: note that a token was used; nothing if it was before.
insert into penstock.file_upload (id, expires_at) values (:id, :expires_at) on conflict (id) do nothing returning id;

-- unclaimed: files of before a time that were not found to be claimed, oldest first.
select id, storage_id from penstock.stored_file f where not claimed and created_at <= :before and {there}
order by created_at limit :limit;

-- claim: note that files are claimed.
update penstock.stored_file set claimed = true where id = any(:ids::text[]);

-- any_file: whether there are files.
select id from penstock.stored_file limit 1;

-- kept: which of some names of bytes belong to a file.
select key from penstock.stored_file where key = any(:keys::text[]);

-- prune: forget used tokens whose time is over, but for rows that others have locked.
delete from penstock.file_upload where id in (
    select id from penstock.file_upload where expires_at <= :now order by expires_at limit :limit for update skip locked
);

-- any_old: whether there are such tokens.
-- SQLite: looking takes no lock.
select 1 from penstock.file_upload where expires_at <= :now limit 1;
