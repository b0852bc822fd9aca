import { useMutation, useQuery } from "convex/react";
import { anyApi as api } from "convex/server";
import { useState } from "react";
import { Chat, show, visitor } from "../page/chat.jsx";

function Page() {
  const messages = useQuery(api.messages.list);
  const send = useMutation(api.messages.send);
  const [query, setQuery] = useState("");
  const found = useQuery(api.messages.search, { query }) ?? [];
  return (
    <>
      <Chat title="Search" messages={messages} send={(body) => send({ body, author: visitor })} />
      <input type="search" aria-label="Search" value={query} onChange={(event) => setQuery(event.target.value)} />
      <ol aria-label="Found">
        {found.map(({ _id, body }) => (
          <li key={_id}>{body}</li>
        ))}
      </ol>
    </>
  );
}

show(<Page />);
