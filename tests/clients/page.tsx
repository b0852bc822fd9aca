import { insertAtTop, useMutation, usePaginatedQuery, useQuery } from "convex/react";
import { ConvexHttpClient } from "convex/browser";
import { useState } from "react";
import { api } from "./chat/api.js";
import type { Doc, Id, Listed } from "./chat/dataModel.js";

export function Chat({ channel }: { channel: Id<"channel"> }) {
  const channels: Listed[] | undefined = useQuery(api.chat.channels);
  const { results, loadMore } = usePaginatedQuery(api.chat.history, { channel }, { initialNumItems: 30 });
  const send = useMutation(api.chat.send).withOptimisticUpdate((store, { author, text }) => {
    const item: Doc<"message"> = { _id: "m" as Id<"message">, _creationTime: 0, channel, author, text };
    insertAtTop({ paginatedQuery: api.chat.history, argsToMatch: { channel }, localQueryStore: store, item });
    const known = store.getQuery(api.chat.channels, {});
    if (known) store.setQuery(api.chat.channels, {}, known.map((one) => ({ ...one, messages: one.messages + 1 })));
  });
  // @ts-expect-error a query is no mutation
  useMutation(api.chat.channels);
  // @ts-expect-error its text is missing
  send({ channel: "general", author: "Ada" });
  // @ts-expect-error an id of another table
  usePaginatedQuery(api.chat.history, { channel: results[0]._id }, { initialNumItems: 30 });
  return <button onClick={() => send({ channel: "general", author: "Ada", text: "hi" }).then((id: Id<"message">) => id)}>{results.map((m) => m.text)}{channels?.length}</button>;
}
export async function once(url: string) {
  const n: number = (await new ConvexHttpClient(url).query(api.chat.latest, { channel: "x" })).length;
  return n;
}
