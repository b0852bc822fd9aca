-- Sessions of the dashboard, which all processes know.

-- A row is somebody who has signed in to the dashboard, or was sent to a provider to do so. `id` is a hash of the browser's
-- cookie, and `content` is encrypted with a key made of it, so that who reads the database can be nobody. Servers insert and
-- delete it; the pruner deletes it later.
create table if not exists penstock.dashboard_session (
    id text collate "C" primary key,
    content text not null,
    expires_at timestamptz not null
);
create index if not exists dashboard_session_expires on penstock.dashboard_session (expires_at);
