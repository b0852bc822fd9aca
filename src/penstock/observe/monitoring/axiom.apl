// Monitors for Axiom over penstock's JSON log (--log-format json). One query for each block.

// Backlog of a pool: jobs that are due. Needs log_level="report" of the pool. Alert above 1000.
['DATASET']
| where event == "workpool.report"
| summarize backlog = max(backlog) by bin(_time, 1m), pool

// Permanent failures of a pool, 0 to 1. Needs log_level="report" of the pool. Alert above 0.05.
['DATASET']
| where event == "workpool.report"
| summarize failures = avg(permanentFailureRate) by bin(_time, 5m), pool

// Failures of a function, 0 to 1, failed attempts included. Needs log_level="info" of the pool. Alert above 0.1.
['DATASET']
| where event == "workpool.completed" and status != "canceled"
| summarize failures = avg(iff(status != "success", 1.0, 0.0)) by bin(_time, 5m), fnName

// Seconds until jobs of a function start. Needs log_level="info" of the pool. Alert above 30.
['DATASET']
| where event == "workpool.started"
| summarize seconds = avg(startLag / 1000.0) by bin(_time, 1m), fnName
