// Follows a channel, and sends to it what is typed: node node/follow.mjs [channel] [name]

import { ConvexClient } from "convex/browser";
import { anyApi } from "convex/server";
import { createInterface } from "node:readline";

const [channel = "general", author = "node"] = process.argv.slice(2);
const client = new ConvexClient(process.env.PENSTOCK_URL ?? "http://127.0.0.1:8000");
const shown = new Set();

client.onUpdate(anyApi.chat.latest, { channel }, (messages) => {
  for (const { _id, author, text } of messages) {
    if (!shown.has(_id)) console.log(`${author}: ${text}`);
    shown.add(_id);
  }
});

for await (const text of createInterface({ input: process.stdin })) {
  if (text.trim()) await client.mutation(anyApi.chat.send, { channel, author, text });
}
await client.close();
