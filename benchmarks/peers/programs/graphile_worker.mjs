// Graphile Worker with its local queue and batched completions, as its page on performance advises.

import { COUNTERS, installed, serve, url } from "../protocol.mjs";

const { Logger, makeWorkerUtils, run, runMigrations } = installed("graphile-worker");
const { Pool } = installed("pg");

const CONCURRENCY = 10;
const LOCAL_QUEUE = 500;
const BATCH_DELAY_MS = 0;
const BUMP = "update counter set count = count + 1 where id = $1";
const LEFT = "select count(*)::int as count from graphile_worker._private_jobs";

const logger = new Logger(() => (level, message) => level === "error" && console.error(message));
const pool = new Pool({ connectionString: url, max: CONCURRENCY });
let utils;

await serve({
  work: ["drain", "transactions"],

  async open(install) {
    if (install) await runMigrations({ pgPool: pool, logger });
    utils = await makeWorkerUtils({ pgPool: pool, logger });
  },

  async close() {
    await utils.release();
    await pool.end();
  },

  async enqueueOne(number) {
    await utils.addJob("job", { number });
  },

  async enqueueMany(count) {
    await utils.addJobs(Array.from({ length: count }, (_, number) => ({ identifier: "job", payload: { number } })));
  },

  async left() {
    return (await pool.query(LEFT)).rows[0].count;
  },

  async startWorker(work, ran) {
    const runner = await run({
      pgPool: pool,
      noHandleSignals: true,
      preset: {
        worker: {
          concurrentJobs: CONCURRENCY,
          localQueue: { size: LOCAL_QUEUE },
          completeJobBatchDelay: BATCH_DELAY_MS,
          failJobBatchDelay: BATCH_DELAY_MS,
          logger,
        },
      },
      taskList: {
        async job({ number }, { withPgClient }) {
          if (work === "transactions") {
            await withPgClient(async (client) => {
              await client.query("begin");
              await client.query(BUMP, [number % COUNTERS]);
              await client.query("commit");
            });
          }
          ran.one(number);
        },
      },
    });
    return () => runner.stop();
  },
});
