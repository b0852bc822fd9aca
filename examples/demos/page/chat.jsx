// The frame of all demos: Convex's own React client at the page's own address, a list of messages, and a line to write.

import { ConvexProvider, ConvexReactClient } from "convex/react";
import { useState } from "react";
import { createRoot } from "react-dom/client";

// The server is the page's own, or the one of the address that it was opened with.
export const server = new URLSearchParams(location.search).get("server") ?? location.origin;
export const convex = new ConvexReactClient(server);

export function show(page, Provider = ConvexProvider) {
  createRoot(document.getElementById("demo")).render(<Provider client={convex}>{page}</Provider>);
}

// A name for a visitor, which a tab keeps.
export const visitor = (sessionStorage.visitor ??= `User ${Math.floor(Math.random() * 10000)}`);

export function Chat({ title, author = visitor, messages = [], send, body = (message) => message.body, children }) {
  return (
    <>
      <h1>{title}</h1>
      <p>You are {author}.</p>
      {children}
      <ul aria-label="Messages">
        {messages.map((message, index) => (
          <li key={message._id ?? index}>
            <b>{message.author}</b>
            <span>{body(message)}</span>
            {message._creationTime && <time>{new Date(message._creationTime).toLocaleTimeString()}</time>}
          </li>
        ))}
      </ul>
      {send && <Line label="Message" button="Send" enter={send} />}
    </>
  );
}

export function Line({ label, button, enter, disabled = false }) {
  const [text, setText] = useState("");
  async function submit(event) {
    event.preventDefault();
    await enter(text);
    setText("");
  }
  return (
    <form onSubmit={submit}>
      <input aria-label={label} value={text} onChange={(event) => setText(event.target.value)} />
      <button disabled={!text || disabled}>{button}</button>
    </form>
  );
}

export function Picture({ send }) {
  async function submit(event) {
    event.preventDefault();
    const form = event.currentTarget;
    await send(form.elements.file.files[0]);
    form.reset();
  }
  return (
    <form onSubmit={submit}>
      <input aria-label="Picture" name="file" type="file" accept="image/*" required />
      <button>Send picture</button>
    </form>
  );
}

// Send a file to an upload URL; its id.
export async function upload(url, file) {
  const answer = await fetch(url, { method: "POST", headers: { "Content-Type": file.type }, body: file });
  const said = await answer.json();
  if (!answer.ok) throw new Error(said.message);
  return said.storageId;
}
