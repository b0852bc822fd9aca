// The page of an album: pictures are uploaded as Convex's upload example does it, and shown as they come.

import { ConvexProvider, ConvexReactClient, useMutation, useQuery } from "convex/react";
import { anyApi } from "convex/server";
import { useState } from "react";
import { createRoot } from "react-dom/client";

const api = anyApi.messages;
const convex = new ConvexReactClient(new URLSearchParams(location.search).get("server"));

function Album() {
  const messages = useQuery(api.list) ?? [];
  const generateUploadUrl = useMutation(api.generateUploadUrl);
  const sendImage = useMutation(api.sendImage);
  const deleteImage = useMutation(api.deleteImage);
  const [picture, choose] = useState(null);
  const [sent, setSent] = useState([]);

  async function send(event) {
    event.preventDefault();
    const result = await fetch(await generateUploadUrl(), {
      method: "POST",
      headers: { "Content-Type": picture.type },
      body: picture,
    });
    const { storageId } = await result.json();
    await sendImage({ storageId, author: "Ada" });
    setSent([...sent, storageId]);
  }

  return (
    <main>
      <form onSubmit={send}>
        <input type="file" aria-label="Picture" accept="image/*" onChange={(event) => choose(event.target.files[0])} />
        <button disabled={picture === null}>Send</button>
      </form>
      {messages.map(({ url }, place) => (url ? <img key={place} src={url} alt="Sent" /> : <p key={place}>deleted</p>))}
      {sent.map((storageId) => (
        <button key={storageId} onClick={() => deleteImage({ storageId })}>
          Delete
        </button>
      ))}
    </main>
  );
}

createRoot(document.body).render(
  <ConvexProvider client={convex}>
    <Album />
  </ConvexProvider>,
);
