import { useMutation, useQuery } from "convex/react";
import { anyApi as api } from "convex/server";
import { useEffect, useState } from "react";
import { Line, server, show } from "../page/chat.jsx";

// The answer to a question that this page has asked, read as it is made.
function useAnswer(streamId, own) {
  const [text, setText] = useState("");
  const [failed, setFailed] = useState(false);
  useEffect(() => {
    if (!own) return undefined;
    const stop = new AbortController();
    read(streamId, stop.signal, (part) => setText((known) => known + part)).catch(() => setFailed(true));
    return () => stop.abort();
  }, [streamId, own]);
  const stored = useQuery(api.streaming.getStreamBody, own && !failed ? "skip" : { streamId });
  return stored ?? { text, status: "streaming" };
}

async function read(streamId, signal, add) {
  const answer = await fetch(`${server}/chat-stream`, {
    method: "POST",
    headers: { "Content-Type": "application/json" },
    body: JSON.stringify({ streamId }),
    signal,
  });
  if (answer.status !== 200) throw new Error(`status ${answer.status}`);
  const text = answer.body.pipeThrough(new TextDecoderStream()).getReader();
  for (let part = await text.read(); !part.done; part = await text.read()) add(part.value);
}

function Answer({ streamId, own }) {
  const { text, status } = useAnswer(streamId, own);
  return <p className={status}>{text || "…"}</p>;
}

function Page() {
  const messages = useQuery(api.messages.listMessages) ?? [];
  const send = useMutation(api.messages.sendMessage);
  const clear = useMutation(api.messages.clearMessages);
  const [own, setOwn] = useState(new Set());
  const ask = async (prompt) => {
    const id = await send({ prompt });
    setOwn((known) => new Set([...known, id]));
  };
  return (
    <>
      <h1>Assistant</h1>
      {messages.map(({ _id, prompt, responseStreamId }) => (
        <section key={_id} aria-label={prompt}>
          <b>{prompt}</b>
          <Answer streamId={responseStreamId} own={own.has(_id)} />
        </section>
      ))}
      <Line label="Question" button="Ask" enter={ask} />
      <button disabled={!messages.length} onClick={() => clear()}>
        Clear
      </button>
    </>
  );
}

show(<Page />);
