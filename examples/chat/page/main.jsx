// The page of the chat: Convex's own React client, on a penstock server at the page's own address.

import { ConvexProvider, ConvexReactClient, insertAtTop, useConvexConnectionState, useMutation, usePaginatedQuery, useQuery } from "convex/react";
import { anyApi } from "convex/server";
import { useEffect, useRef, useState } from "react";
import { createRoot } from "react-dom/client";

const api = anyApi.chat;
const PAGE = 30;
const convex = new ConvexReactClient(location.origin);

function Chat() {
  const channels = useQuery(api.channels);
  const [chosen, choose] = useChannel();
  const [author, setAuthor] = useStored("author", "");
  const channel = channels?.find((one) => one.name === chosen) ?? channels?.[0];
  useChannelKeys(channels, channel, choose);
  return (
    <div className="chat">
      <nav aria-label="Channels">
        <h1>
          penstock <span>chat</span>
        </h1>
        <Channels channels={channels} current={channel} choose={choose} />
        <NewChannel choose={choose} />
        <Author author={author} set={setAuthor} />
      </nav>
      <main>
        {channel ? (
          <Channel key={channel.id} channel={channel} author={author || "somebody"} />
        ) : (
          <p className="hint">{channels ? "Open the first channel." : "Loading …"}</p>
        )}
      </main>
    </div>
  );
}

function Channels({ channels = [], current, choose }) {
  return (
    <ul className="channels">
      {channels.map(({ id, name, messages }) => (
        <li key={id}>
          <button aria-current={id === current?.id} onClick={() => choose(name)}>
            <span>#{name}</span> <small>{messages}</small>
          </button>
        </li>
      ))}
    </ul>
  );
}

function NewChannel({ choose }) {
  const open = useMutation(api.open_channel);
  const [name, setName] = useState("");
  async function submit(event) {
    event.preventDefault();
    if (!name.trim()) return;
    setName("");
    await open({ name });
    choose(name.trim().toLowerCase().replaceAll(" ", "-"));
  }
  return (
    <form className="new" onSubmit={submit}>
      <input aria-label="New channel" placeholder="New channel" maxLength={40} value={name} onChange={(event) => setName(event.target.value)} />
    </form>
  );
}

function Author({ author, set }) {
  return (
    <label className="author">
      Your name
      <input value={author} maxLength={40} placeholder="somebody" autoComplete="nickname" onChange={(event) => set(event.target.value)} />
    </label>
  );
}

function Channel({ channel, author }) {
  const { results, status, loadMore } = usePaginatedQuery(api.history, { channel: channel.id }, { initialNumItems: PAGE });
  const older = useRef(null);
  useEffect(() => {
    if (status !== "CanLoadMore") return undefined;
    const seen = new IntersectionObserver(([entry]) => entry.isIntersecting && loadMore(PAGE), { rootMargin: "400px" });
    seen.observe(older.current);
    return () => seen.disconnect();
  }, [status, loadMore]);
  return (
    <>
      <header>
        <h2>#{channel.name}</h2>
        <Connection />
      </header>
      {/* the newest is first, and drawn at the bottom: so the list stays where it is while older ones are loaded */}
      <ol className="messages" role="log" aria-label="Messages" tabIndex={0}>
        {results.map((message, index) => (
          <Message key={message._id} message={message} before={results[index + 1]} own={message.author === author} />
        ))}
        <li ref={older} className="hint">
          {{ LoadingFirstPage: "Loading …", LoadingMore: "Loading older messages …", Exhausted: "The beginning of the channel." }[status]}
        </li>
      </ol>
      <Composer channel={channel} author={author} />
    </>
  );
}

function Message({ message, before, own }) {
  const at = new Date(message._creationTime);
  const follows = before?.author === message.author && message._creationTime - before._creationTime < 300_000;
  return (
    <li className={`message${own ? " own" : ""}${follows ? " follows" : ""}${message.pending ? " pending" : ""}`}>
      {!follows && (
        <p className="who">
          <b>{message.author}</b> <time dateTime={at.toISOString()}>{at.toLocaleTimeString([], { timeStyle: "short" })}</time>
        </p>
      )}
      <p className="text">{message.text}</p>
    </li>
  );
}

function Composer({ channel, author }) {
  const [text, setText] = useState("");
  const [error, setError] = useState("");
  const send = useMutation(api.send);
  const sent = useRef(0);
  async function submit(event) {
    event.preventDefault();
    if (!text.trim()) return;
    setText("");
    setError("");
    const message = { channel: channel.name, author, text: text.trim() };
    const item = { ...message, _id: `sending-${sent.current++}`, _creationTime: Date.now(), pending: true };
    const show = (localQueryStore) =>
      insertAtTop({ paginatedQuery: api.history, argsToMatch: { channel: channel.id }, localQueryStore, item });
    try {
      await send.withOptimisticUpdate(show)(message);
    } catch (failure) {
      setError(failure.data?.kind === "too long" ? `At most ${failure.data.most} characters, please.` : "It was not sent.");
      setText(text);
    }
  }
  function enter(event) {
    if (event.key === "Enter" && !event.shiftKey && !event.nativeEvent.isComposing) submit(event);
  }
  return (
    <form className="composer" onSubmit={submit}>
      {error && <p role="alert">{error}</p>}
      <textarea autoFocus rows={1} aria-label="Message" placeholder={`Message #${channel.name}`} value={text} onChange={(event) => setText(event.target.value)} onKeyDown={enter} />
      <button disabled={!text.trim()}>Send</button>
    </form>
  );
}

function Connection() {
  const { isWebSocketConnected, hasInflightRequests } = useConvexConnectionState();
  const state = !isWebSocketConnected ? "connecting" : hasInflightRequests ? "sending" : "live";
  return (
    <span className={`connection ${state}`} role="status">
      {state}
    </span>
  );
}

// The channel stands in the address, so that it can be shared and "back" works.
function useChannel() {
  const read = () => decodeURIComponent(location.hash.slice(1));
  const [name, setName] = useState(read);
  useEffect(() => {
    const changed = () => setName(read());
    addEventListener("hashchange", changed);
    return () => removeEventListener("hashchange", changed);
  }, []);
  return [name, (chosen) => (location.hash = encodeURIComponent(chosen))];
}

// Alt and an arrow go to the next channel.
function useChannelKeys(channels = [], current, choose) {
  useEffect(() => {
    function pressed(event) {
      const step = { ArrowUp: -1, ArrowDown: 1 }[event.key];
      if (!event.altKey || !step || !channels.length) return;
      event.preventDefault();
      choose(channels[(channels.indexOf(current) + step + channels.length) % channels.length].name);
    }
    addEventListener("keydown", pressed);
    return () => removeEventListener("keydown", pressed);
  }, [channels, current, choose]);
}

function useStored(key, initial) {
  const [value, setValue] = useState(() => localStorage.getItem(key) ?? initial);
  useEffect(() => localStorage.setItem(key, value), [key, value]);
  return [value, setValue];
}

createRoot(document.getElementById("chat")).render(
  <ConvexProvider client={convex}>
    <Chat />
  </ConvexProvider>,
);
