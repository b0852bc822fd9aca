import { useMutation, useQuery } from "convex/react";
import { anyApi as api } from "convex/server";
import { Chat, show, visitor } from "../page/chat.jsx";

function Page() {
  const messages = useQuery(api.messages.list);
  const send = useMutation(api.messages.send);
  const sendExpiring = useMutation(api.messages.sendExpiringMessage);
  const enter = (text) =>
    text.startsWith("/expiring ")
      ? sendExpiring({ body: text.slice("/expiring ".length), author: visitor })
      : send({ body: text, author: visitor });
  return (
    <Chat title="Scheduling" messages={messages} send={enter}>
      <p>A message that begins with /expiring counts down and deletes itself.</p>
    </Chat>
  );
}

show(<Page />);
