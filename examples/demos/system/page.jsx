import { useMutation, useQuery } from "convex/react";
import { anyApi as api } from "convex/server";
import { Chat, Picture, show, upload, visitor } from "../page/chat.jsx";

function Page() {
  const messages = useQuery(api.messages.list);
  const sendMessage = useMutation(api.messages.sendMessage);
  const scheduleMessage = useMutation(api.messages.scheduleMessage);
  const generateUploadUrl = useMutation(api.messages.generateUploadUrl);
  const sendImage = useMutation(api.messages.sendImage);
  const send = (text) => {
    const [, delay, later] = text.match(/^\/delay (\d+) (.+)$/) ?? [];
    return delay
      ? scheduleMessage({ body: later, author: visitor, delay: Number(delay) })
      : sendMessage({ body: text, author: visitor });
  };
  const sendPicture = async (file) =>
    sendImage({ storageId: await upload(await generateUploadUrl(), file), author: visitor });
  const body = ({ format, url, body }) => (format === "image" ? <img src={url} alt="A picture" /> : body);
  return (
    <>
      <Chat title="System" messages={messages} body={body} send={send}>
        <p>A message that begins with /delay 5 is sent in five seconds.</p>
      </Chat>
      <Picture send={sendPicture} />
      <Admin />
    </>
  );
}

function Admin() {
  const files = useQuery(api.admin.listFiles) ?? [];
  const sends = useQuery(api.admin.listScheduledSends) ?? [];
  const cancel = useMutation(api.admin.cancelMessage);
  return (
    <>
      <ul aria-label="Scheduled">
        {sends
          .filter(({ state }) => ["pending", "inProgress"].includes(state.kind))
          .map(({ _id, args: [{ author, body }], scheduledTime }) => (
            <li key={_id}>
              {author}: {body} at {new Date(scheduledTime).toLocaleTimeString()}
              <button onClick={() => cancel({ jobId: _id })}>Cancel</button>
            </li>
          ))}
      </ul>
      <ul aria-label="Files">
        {files.map((file) => (
          <li key={file._id}>
            {file.author}: {file.size} bytes of {file.contentType} <Preview id={file._id} />
          </li>
        ))}
      </ul>
    </>
  );
}

function Preview({ id }) {
  return <img src={useQuery(api.admin.getFileUrl, { id })} alt="A file" />;
}

show(<Page />);
