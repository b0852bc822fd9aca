import { useMutation, useQuery } from "convex/react";
import { anyApi as api } from "convex/server";
import { Chat, Picture, show, upload, visitor } from "../page/chat.jsx";

function Page() {
  const messages = useQuery(api.messages.list);
  const sendMessage = useMutation(api.messages.sendMessage);
  const generateUploadUrl = useMutation(api.messages.generateUploadUrl);
  const sendImage = useMutation(api.messages.sendImage);
  const sendPicture = async (file) =>
    sendImage({ storageId: await upload(await generateUploadUrl(), file), author: visitor });
  const body = ({ format, url, body }) => (format === "image" ? <img src={url} alt="A picture" /> : body);
  return (
    <>
      <Chat title="Pictures" messages={messages} body={body} send={(body) => sendMessage({ body, author: visitor })} />
      <Picture send={sendPicture} />
    </>
  );
}

show(<Page />);
