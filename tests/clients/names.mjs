// Calls each function of each name with its generated api, and shows what comes back: `names.mjs URL`, names on stdin.

import { readFileSync } from "node:fs";
import { isDeepStrictEqual } from "node:util";
import { ConvexClient, ConvexHttpClient } from "convex/browser";
import { api } from "./wire/api.js";

const { names, members, given } = JSON.parse(readFileSync(0, "utf8"));
const [http, socket] = [new ConvexHttpClient(process.argv[2]), new ConvexClient(process.argv[2])];
const wrong = [];

async function check(what, found, right) {
  if (!isDeepStrictEqual(await found, right)) wrong.push([what, await found]);
}

for (let from = 0; from < names.length; from += 20) {
  await Promise.all(names.slice(from, from + 20).map((name) => check(name, http.query(api[name][name], {}), name)));
}
for (const client of [http, socket]) {
  const whole = Object.fromEntries(members.map((name, number) => [name, number]));
  const args = Object.fromEntries(given.map((name, number) => [name, number]));
  await check("same", client.query(api.here.same, { whole, ...args }), [whole, args]);
  const ids = await client.mutation(api.here.put, {});
  const rows = await client.query(api.here.rows, { ids });
  await check("rows", rows.map((row) => row._id), ids);
}
console.log(JSON.stringify(wrong));
process.exit(0);
