// A page on generated apis, which the compiler accepts but for the marked lines.

import { ConvexHttpClient } from "convex/browser";
import { useState } from "react";
import { insertAtTop, useMutation, usePaginatedQuery, useQuery } from "convex/react";
import type { FunctionReturnType } from "convex/server";
import { api as awkward } from "./awkward/api.js";
import { api } from "./chat/api.js";
import type { Doc, Id, Listed } from "./chat/dataModel.js";
import { api as kinds } from "./everykind/api.js";

export function Chat({ channel }: { channel: Id<"channel"> }) {
  const channels: Listed[] | undefined = useQuery(api.chat.channels);
  const { results, loadMore } = usePaginatedQuery(api.chat.history, { channel }, { initialNumItems: 30 });
  const send = useMutation(api.chat.send).withOptimisticUpdate((store, { author, text }) => {
    const item: Doc<"message"> = { _id: "m" as Id<"message">, _creationTime: 0, channel, author, text };
    insertAtTop({ paginatedQuery: api.chat.history, argsToMatch: { channel }, localQueryStore: store, item });
    const known = store.getQuery(api.chat.channels, {}) ?? [];
    store.setQuery(api.chat.channels, {}, known.map((one) => ({ ...one, messages: one.messages + 1 })));
  });
  // @ts-expect-error a query is no mutation
  useMutation(api.chat.channels);
  // @ts-expect-error its text is missing
  void send({ channel: "general", author: "Ada" });
  // @ts-expect-error an id of another table
  useQuery(api.chat.history, { channel: results[0]._id, paginationOpts: { numItems: 1, cursor: null } });
  return (
    <button onClick={() => loadMore(10)}>
      {results.map((message) => message.text.toUpperCase())} of {channels?.length}
    </button>
  );
}

export async function count(url: string): Promise<number> {
  const client = new ConvexHttpClient(url);
  const sent: Id<"message"> = await client.mutation(api.chat.send, { channel: "x", author: "Ada", text: url });
  return (await client.query(api.chat.latest, { channel: sent })).length;
}

export const found = [awkward.a.b, awkward.a.b.c, awkward.live.dict, awkward.class.x] as const;

export function shown(status: NonNullable<FunctionReturnType<typeof kinds.programs.everykind.state>>): string {
  // @ts-expect-error finished work counts no attempts
  void status.previousAttempts;
  switch (status.kind) {
    case "pending":
      return `waits after ${status.previousAttempts.toFixed()} attempts`;
    case "running":
      // @ts-expect-error it may have reported none
      void status.progress.done;
      return `attempt ${status.previousAttempts + 1}: ${status.progress?.done.toFixed()}`;
    case "finished":
      return status.result.kind === "failed" ? status.result.error.trim() : status.result.kind;
  }
  const none: never = status;
  return none;
}

export function Shipping({ order }: { order: Id<"order"> }) {
  const [run, setRun] = useState<string>();
  const start = useMutation(kinds.programs.everykind.ship.start);
  const send = useMutation(kinds.events.shipped);
  const status = useQuery(kinds.programs.everykind.ship.status, run === undefined ? "skip" : { run });
  const result: { [key: string]: string } | null | undefined = status?.result;
  // @ts-expect-error there is no such state
  void (status?.state === "lost");
  // @ts-expect-error the order is missing
  void start({ size: "small" });
  // @ts-expect-error the payload of the event is a date, which is a text
  void send({ run: run ?? "", payload: 3 });
  return (
    <button
      onClick={async () => {
        setRun(await start({ order }));
      }}
    >
      {status?.state === "waiting" ? "underway" : Object.keys(result ?? {})}
    </button>
  );
}
