-- API keys, and the audit log. Some databases have both already: they were made before the first release.

-- A row is an API key, as the hash of its secret. Administrators insert and delete it; servers read it. `scopes` is a JSON
-- list.
create table if not exists penstock.api_key (
    name text collate "C" primary key,
    hash text collate "C" not null unique,
    scopes text not null,
    created_at timestamptz not null,
    expires_at timestamptz
);

-- A row is something that an administrator has done on the dashboard or the admin interface; `about` is a JSON object. Servers
-- insert it before it is done, and update `outcome` afterwards; the pruner deletes it.
create table if not exists penstock.audit (
    id uuid primary key,
    at timestamptz not null,
    who text not null,
    role text not null,
    act text not null,
    about text not null,
    outcome text,
    kept_until timestamptz not null
);
create index if not exists audit_kept on penstock.audit (kept_until);
