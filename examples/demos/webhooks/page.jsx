import { useMutation, useQuery } from "convex/react";
import { anyApi as api } from "convex/server";
import { Chat, server, show, visitor } from "../page/chat.jsx";

function Page() {
  const messages = useQuery(api.messages.list);
  const send = useMutation(api.messages.send);
  return (
    <Chat title="HTTP actions" messages={messages} send={(body) => send({ body, author: visitor })}>
      <p>Other programs write and read, too:</p>
      <pre>
        curl {server}/postMessage --json {`'{"author": "User 7", "body": "hello"}'`}
        {"\n"}
        curl {server}/getMessagesByAuthor?authorNumber=7
      </pre>
    </Chat>
  );
}

show(<Page />);
