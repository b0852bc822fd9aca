import { useMutation, useQuery } from "convex/react";
import { anyApi as api } from "convex/server";
import { Chat, Picture, show, visitor } from "../page/chat.jsx";

function Page() {
  const messages = useQuery(api.messages.list);
  const sendMessage = useMutation(api.messages.sendMessage);
  const generateUploadUrl = useMutation(api.messages.generateUploadUrl);
  const sendImage = useMutation(api.messages.sendImage);
  async function upload(file) {
    const answer = await fetch(await generateUploadUrl(), {
      method: "POST",
      headers: { "Content-Type": file.type },
      body: file,
    });
    const said = await answer.json();
    if (!answer.ok) throw new Error(said.message);
    await sendImage({ storageId: said.storageId, author: visitor });
  }
  const body = ({ format, url, body }) => (format === "image" ? <img src={url} alt="A picture" /> : body);
  return (
    <>
      <Chat title="Pictures" messages={messages} body={body} send={(body) => sendMessage({ body, author: visitor })} />
      <Picture send={upload} />
    </>
  );
}

show(<Page />);
