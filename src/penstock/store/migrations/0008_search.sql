-- Text search indexes.

-- A row is a search index that a program declares, such as `message.by_body`; `digest` is of all that its tokens depend on.
-- Its tokens are in a table of their own, `search_<id>`. `cursor` is the place of its backfill: empty at the beginning, and
-- NULL once all rows are indexed. `interest` is the number of the interest that captures its changes. Backends that start insert it, indexers update it, searches read it; `penstock migrate`
-- deletes it.
create table if not exists penstock.search (
    id bigint generated always as identity primary key,
    name text not null,
    digest text not null,
    interest integer,
    cursor text,
    unique (name, digest)
);
