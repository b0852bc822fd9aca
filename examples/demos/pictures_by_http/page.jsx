import { useMutation, useQuery } from "convex/react";
import { anyApi as api } from "convex/server";
import { Chat, Picture, server, show, visitor } from "../page/chat.jsx";

function Page() {
  const messages = useQuery(api.messages.list);
  const send = useMutation(api.messages.send);
  async function upload(file) {
    const url = new URL("/sendImage", server);
    url.searchParams.set("author", visitor);
    await fetch(url, { method: "POST", headers: { "Content-Type": file.type }, body: file });
  }
  const body = ({ format, body }) =>
    format === "image" ? <img src={`${server}/getImage?storageId=${body}`} alt="A picture" /> : body;
  return (
    <>
      <Chat title="Pictures" messages={messages} body={body} send={(body) => send({ body, author: visitor })} />
      <Picture send={upload} />
    </>
  );
}

show(<Page />);
