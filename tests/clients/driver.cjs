// Runs one of the official JavaScript clients, told what to do by lines of JSON on its standard input.
// node driver.cjs KIND URL, with KIND one of node, react, http; PENSTOCK_TEST_NODE_MODULES is where `convex` is installed.
"use strict";

const { createRequire } = require("node:module");
const { createInterface } = require("node:readline");

const installed = createRequire(`${process.env.PENSTOCK_TEST_NODE_MODULES}/`);
const { ConvexClient, ConvexHttpClient } = installed("convex/browser");
const { getFunctionName, makeFunctionReference } = installed("convex/server");
const { convexToJson, jsonToConvex } = installed("convex/values");

const [kind, url] = process.argv.slice(2);
const watched = new Map(); // what reads the newest value of each subscription, by its name
const tell = (message) => process.stdout.write(`${JSON.stringify(message)}\n`);

for (const level of ["log", "info", "warn", "error"]) {
  console[level] = (...words) => tell({ console: level, text: words.map(String).join(" ") });
}
process.on("uncaughtException", (error) => {
  tell({ console: "uncaught", text: String(error) });
  process.exit(1);
});

function told(error) {
  const data = error.data === undefined ? undefined : convexToJson(error.data);
  return { error: { message: error.message, data } };
}

function answer(give) {
  try {
    const value = give();
    return value === undefined ? undefined : { value: convexToJson(value) };
  } catch (error) {
    return told(error);
  }
}

function everything() {
  const seen = {};
  for (const [name, read] of watched) {
    const found = read();
    if (found === undefined) return; // no answer yet
    seen[name] = found;
  }
  tell({ seen });
}

function simple() {
  const client = new ConvexClient(url);
  return {
    own: client,
    subscribe(name, reference, args) {
      const unsubscribe = client.onUpdate(
        reference,
        args,
        () => setImmediate(everything),
        () => setImmediate(everything),
      );
      watched.set(name, () => answer(() => client.client.localQueryResult(getFunctionName(reference), args)));
      return unsubscribe;
    },
    query: (reference, args) => client.query(reference, args),
    mutation: (reference, args) => client.mutation(reference, args),
    action: (reference, args) => client.action(reference, args),
  };
}

function react() {
  const { ConvexReactClient } = installed("convex/react");
  const client = new ConvexReactClient(url, { webSocketConstructor: installed("ws") });
  return {
    own: client,
    subscribe(name, reference, args) {
      const watch = client.watchQuery(reference, args);
      const unsubscribe = watch.onUpdate(everything);
      watched.set(name, () => answer(() => watch.localQueryResult()));
      return unsubscribe;
    },
    query: (reference, args) => client.query(reference, args),
    action: (reference, args) => client.action(reference, args),
    // `shown`: a list of texts that is to show the new one before the server has it
    mutation: (reference, args, shown) =>
      client.mutation(reference, args, shown ? {
        optimisticUpdate: (store, { text }) => {
          const list = makeFunctionReference(shown);
          store.setQuery(list, {}, [...(store.getQuery(list, {}) ?? []), text].sort());
        },
      } : undefined),
  };
}

function http() {
  const client = new ConvexHttpClient(url);
  return {
    own: client,
    query: (reference, args) => client.query(reference, args),
    consistentQuery: (reference, args) => client.consistentQuery(reference, args),
    mutation: (reference, args) => client.mutation(reference, args),
    action: (reference, args) => client.action(reference, args),
  };
}

const client = { node: simple, react, http }[kind]();
const leave = new Map();
const signingIn = { fetched: 0, isSignedIn: null };

// Sign in with these tokens, one after another; with none, sign out.
function sign(tokens) {
  if (kind === "http") return tokens.length ? client.own.setAuth(tokens[0]) : client.own.clearAuth();
  if (tokens.length === 0) return (client.own.client ?? client.own).clearAuth();
  const fetchToken = async () => tokens[Math.min(signingIn.fetched++, tokens.length - 1)];
  client.own.setAuth(fetchToken, (isSignedIn) => (signingIn.isSignedIn = isSignedIn));
}

async function act({ id, do: verb, name, path, args, shown }) {
  const reference = path && makeFunctionReference(path);
  const given = jsonToConvex(args ?? {});
  if (verb === "subscribe") {
    leave.set(name, client.subscribe(name, reference, given));
    everything();
    return { id };
  }
  if (verb === "sign") {
    if (args.tokens) sign(args.tokens);
    return { id, value: signingIn };
  }
  if (verb === "unsubscribe") {
    watched.delete(name);
    leave.get(name)();
    return { id };
  }
  try {
    const value = convexToJson((await client[verb](reference, given, shown)) ?? null);
    const seen = Object.fromEntries([...watched].map(([one, read]) => [one, read() ?? null]));
    return { id, value, seen };
  } catch (error) {
    return { id, ...told(error) };
  }
}

createInterface({ input: process.stdin })
  .on("line", (line) => act(JSON.parse(line)).then(tell, (error) => tell({ console: "uncaught", text: String(error) })))
  .on("close", () => process.exit(0));
tell({ ready: true });
