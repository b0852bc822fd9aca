-- Files. Their bytes are in a folder or a bucket.

-- A row is a file. `key` is the name of its bytes, `storage_id` the secret part of its permanent URL, and `digest` is in
-- hexadecimal. `claimed` says that a row of a user has been found to refer to it. Uploads and actions insert it, pruners update
-- `claimed` and delete it.
create table penstock.stored_file (
    id text collate "C" primary key,
    created_at timestamptz not null,
    key text not null unique,
    storage_id uuid not null unique,
    size bigint not null,
    digest text not null,
    content_type text,
    creator text,
    claimed boolean not null default false
);
create index stored_file_unclaimed on penstock.stored_file (created_at) where not claimed;

-- A row says that a file is deleted: nobody sees it any more, and its bytes are to go. Transactions of users insert it. Pruners
-- delete it with the row of the file, once the bytes are gone.
create table penstock.file_removal (
    file text collate "C" primary key
);

-- A row is an upload token that may be used once, and was. Uploads insert it, and pruners delete it.
create table penstock.file_upload (
    id text primary key,
    expires_at timestamptz not null
);
create index file_upload_expires on penstock.file_upload (expires_at);

-- The one row names the folder of this database among the bytes, and has the secret that signs tokens. Nobody changes it.
create table penstock.file_space (
    id integer primary key check (id = 1),
    name text not null,
    secret text not null
);
insert into penstock.file_space (id, name, secret) select 1, replace(a, '-', ''), replace(b || c, '-', '')  -- PostgreSQL
from (select gen_random_uuid()::text as a, gen_random_uuid()::text as b, gen_random_uuid()::text as c) chance;  -- PostgreSQL
insert into penstock.file_space (id, name, secret)  -- SQLite
values (1, lower(hex(randomblob(16))), lower(hex(randomblob(32))));  -- SQLite
