import { useMutation, useQuery } from "convex/react";
import { anyApi as api } from "convex/server";
import { useState } from "react";
import { Chat, Line, show, visitor } from "../page/chat.jsx";

function Page() {
  const channels = useQuery(api.channels.list) ?? [];
  const add = useMutation(api.channels.add);
  const [chosen, choose] = useState(null);
  return (
    <>
      <nav>
        {channels.map(({ _id, name }) => (
          <button key={_id} aria-current={_id === chosen} onClick={() => choose(_id)}>
            {name}
          </button>
        ))}
        <Line label="Channel" button="Add" enter={async (name) => choose(await add({ name }))} />
      </nav>
      {chosen && <Channel key={chosen} channel={chosen} />}
    </>
  );
}

function Channel({ channel }) {
  const messages = useQuery(api.messages.list, { channelId: channel });
  const send = useMutation(api.messages.send);
  return <Chat title="Channel" messages={messages} send={(body) => send({ channel, body, author: visitor })} />;
}

show(<Page />);
