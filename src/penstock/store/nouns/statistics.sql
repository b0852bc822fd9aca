-- overdue: how many finished jobs are still there though their time was over before a moment, counted up to :most.
-- SQLite: it deletes them one by one.
select count(*) from (select 1 from penstock.finished_job where expires_at <= :before limit :most) few;
-- PostgreSQL: it truncates the partition of a day, and deletes from the long one.
select (select count(*) from (select from penstock.finished_job_long where expires_at <= :before limit :most) few)
    + (select count(*) from (select from penstock.finished_job where day = :day limit :most) few);

-- log: the file next to which the write-ahead log lies.
-- SQLite: on PostgreSQL the server looks after its log.
select file from pragma_database_list where name = 'main';

-- size: the bytes that the database takes on disk.
-- SQLite: the log next to it is apart.
select page_count * page_size from pragma_page_count, pragma_page_size;
-- PostgreSQL: with all its tables, those of other programs too.
select pg_database_size(current_database());

-- connections: how many connections programs have opened, and how many the server permits.
-- PostgreSQL: a file has no server.
select (select count(*) from pg_stat_activity where backend_type = 'client backend'),
    current_setting('max_connections')::bigint - current_setting('superuser_reserved_connections')::bigint;

-- tables: dead and live rows of some tables and of penstock's own, how often each was read as a whole, and the rows read so.
-- PostgreSQL: SQLite counts nothing.
select format('%I.%I', s.schemaname, s.relname) as name, s.n_dead_tup as dead, s.n_live_tup as live, s.seq_scan as scans,
       s.seq_tup_read as scanned, s.schemaname = 'penstock' as own
from pg_stat_user_tables s
where s.schemaname = 'penstock' or s.relid in (select to_regclass(name) from unnest(:names::text[]) name);

-- unused: indexes of some tables that no query has used, and that keep no rows apart.
-- PostgreSQL: SQLite counts nothing.
select format('%I.%I', s.schemaname, s.relname) as "table", s.indexrelname as name, pg_relation_size(s.indexrelid) as size
from pg_stat_user_indexes s join pg_index i on i.indexrelid = s.indexrelid
where s.idx_scan = 0 and not i.indisunique
    and s.relid in (select to_regclass(name) from unnest(:names::text[]) name);
