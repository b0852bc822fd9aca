-- Failed jobs, to be listed and counted.
create index if not exists finished_job_failed_id on penstock.finished_job (id, expires_at) where state = 'failed';
