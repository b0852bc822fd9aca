-- Failed jobs, to be listed and counted.
create index if not exists penstock_finished_job_failed_id on penstock_finished_job (id, expires_at) where state = 'failed';
