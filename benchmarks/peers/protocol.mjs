// The protocol of `protocol.py` for programs on Node, run in the folder that their packages are installed in.
//
// A peer is an object: open(install), close(), enqueueOne(number), enqueueMany(count), left(), and
// startWorker(work, ran), which resolves to a function that stops it. `work` lists what its workers can be given.

import { spawn } from "node:child_process";
import { createRequire } from "node:module";

export const COUNTERS = 1000;
const LOOK_EVERY_MS = 10;
const LONGEST_MS = 120_000;
const IDLE_AFTER_MS = 1000;

export const installed = createRequire(`${process.cwd()}/`);
export const url = process.argv[2];

const sleep = (ms) => new Promise((resolve) => setTimeout(resolve, Math.max(0, ms)));
const now = () => Number(process.hrtime.bigint()) / 1e9;

class Ran {
  numbers = [];
  times = [];

  one(number) {
    this.times.push(now());
    this.numbers.push(number);
  }

  counts() {
    return { ran: this.numbers.length, distinct: new Set(this.numbers).size };
  }
}

export async function serve(peer) {
  const [measure, count, rate] = [process.argv[3], Number(process.argv[4]), Number(process.argv[5])];
  if (["drain", "batches", "transactions"].includes(measure) && !peer.work.includes(measure)) {
    console.log(JSON.stringify({ cannot: `it has no ${measure}` }));
    return;
  }
  await peer.open(measure !== "feed");
  const outcome = await measured(peer, measure, count, rate);
  await peer.close();
  process.stdout.write(`${JSON.stringify(outcome)}\n`, () => process.exit(0));
}

async function measured(peer, measure, count, rate) {
  switch (measure) {
    case "drain":
    case "batches":
    case "transactions":
      return drain(peer, measure, count);
    case "enqueue":
      return stored(peer, async () => {
        for (let number = 0; number < count; number++) await peer.enqueueOne(number);
      });
    case "batch":
      return stored(peer, () => peer.enqueueMany(count));
    case "latency":
      return latency(peer, count, rate);
    case "feed":
      return feed(peer, count, rate);
  }
  throw new Error(`There is no measure ${measure}.`);
}

async function stored(peer, enqueue) {
  const begun = now();
  await enqueue();
  const seconds = now() - begun;
  return { seconds, stored: await peer.left() };
}

async function drain(peer, work, count) {
  const ran = new Ran();
  await peer.enqueueMany(count);
  const before = process.cpuUsage();
  const stop = await peer.startWorker(work, ran);
  await untilAllRan(ran, count);
  const longest = now() + LONGEST_MS / 1000;
  while (await peer.left()) {
    if (now() > longest) throw new Error("All jobs have run, but the queue does not settle them.");
    await sleep(LOOK_EVERY_MS);
  }
  const settled = now();
  const worked = process.cpuUsage(before); // in microseconds
  await stop();
  const seconds = ran.times.at(-1) - ran.times[0];
  const cpu_seconds = (worked.user + worked.system) / 1e6;
  return { ...ran.counts(), seconds, settled_seconds: settled - ran.times[0], cpu_seconds };
}

async function latency(peer, count, rate) {
  const ran = new Ran();
  const stop = await peer.startWorker("drain", ran);
  await sleep(IDLE_AFTER_MS);
  const fed = await fedByAnother(count, rate);
  await untilAllRan(ran, count);
  await stop();
  const begun = new Map(ran.numbers.map((number, place) => [number, ran.times[place]]));
  const [pickup_ms, whole_ms] = [[], []];
  for (let number = Math.min(Math.trunc(rate), Math.trunc(count / 2)); number < count; number++) {
    pickup_ms.push((begun.get(number) - fed[number][1]) * 1000);
    whole_ms.push((begun.get(number) - fed[number][0]) * 1000);
  }
  return { ...ran.counts(), pickup_ms, whole_ms };
}

function fedByAnother(count, rate) {
  return new Promise((resolve, reject) => {
    const words = [process.argv[1], url, "feed", String(count), String(rate)];
    const feeder = spawn(process.execPath, words, { stdio: ["ignore", "pipe", "inherit"] });
    let output = "";
    feeder.stdout.on("data", (piece) => (output += piece));
    feeder.on("close", (code) => {
      if (code) reject(new Error("The process that enqueues has failed."));
      else resolve(JSON.parse(output.trim().split("\n").at(-1)).fed);
    });
  });
}

async function feed(peer, count, rate) {
  const fed = [];
  let due = now();
  for (let number = 0; number < count; number++) {
    due += (0.5 + Math.random()) / rate;
    await sleep((due - now()) * 1000);
    const begun = now();
    await peer.enqueueOne(number);
    fed.push([begun, now()]);
  }
  return { fed };
}

async function untilAllRan(ran, count) {
  const longest = now() + LONGEST_MS / 1000;
  while (ran.numbers.length < count) {
    if (now() > longest) throw new Error(`${count - ran.numbers.length} of ${count} jobs have not run.`);
    await sleep(LOOK_EVERY_MS);
  }
}
