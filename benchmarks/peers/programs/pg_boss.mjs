// pg-boss with batches, woken by LISTEN and NOTIFY, and its own transaction around handler and completion.

import { COUNTERS, installed, serve, url } from "../protocol.mjs";

const { PgBoss } = installed("pg-boss");
const { Pool } = installed("pg");

const BATCH = 1000;
const TRANSACTION_BATCH = 100;
const BUMP = "update counter set count = count + 1 where id = $1";
const LEFT = "select count(*)::int as count from pgboss.job where name = 'job' and state < 'completed'";

const boss = new PgBoss({ connectionString: url, useListenNotify: true, supervise: false, schedule: false });
const pool = new Pool({ connectionString: url, max: 1 });
boss.on("error", console.error);

await serve({
  work: ["drain", "batches", "transactions"],

  async open(install) {
    await boss.start();
    if (install) await boss.createQueue("job", { notify: true });
  },

  async close() {
    await boss.stop({ graceful: false });
    await pool.end();
  },

  async enqueueOne(number) {
    await boss.send("job", { number });
  },

  async enqueueMany(count) {
    await boss.insert("job", Array.from({ length: count }, (_, number) => ({ data: { number } })));
  },

  async left() {
    return (await pool.query(LEFT)).rows[0].count;
  },

  async startWorker(work, ran) {
    const pace = { pollingIntervalSeconds: 0.5, burstWhenBatchFull: true };
    if (work === "transactions") {
      const options = { ...pace, batchSize: TRANSACTION_BATCH, localConcurrency: 4, transactional: true };
      await boss.work("job", options, async (jobs, db) => {
        for (const { data } of jobs) await db.executeSql(BUMP, [data.number % COUNTERS]);
        for (const { data } of jobs) ran.one(data.number);
      });
    } else {
      await boss.work("job", { ...pace, batchSize: BATCH }, async (jobs) => {
        for (const { data } of jobs) ran.one(data.number);
      });
    }
    return () => boss.offWork("job");
  },
});
