-- A row is the state that a run of a workflow has published last, as JSON. The run's worker writes it with the run's records. The
-- pruner deletes it after the run.
create table penstock.workflow_state (
    run uuid primary key,
    published text not null
);
