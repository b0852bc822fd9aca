import { useMutation, useQuery } from "convex/react";
import { anyApi as api } from "convex/server";
import { useEffect, useState } from "react";
import { Chat, show, visitor } from "../page/chat.jsx";

const ROOM = "lobby";
const HEARTBEAT = 5000;
const AWAY = 10000;
const FACES = ["🐸", "🦊", "🐼", "🐙"];

function usePresence(user, data) {
  const update = useMutation(api.presence.update);
  const heartbeat = useMutation(api.presence.heartbeat);
  useEffect(() => {
    void update({ room: ROOM, user, data });
    const timer = setInterval(() => void heartbeat({ room: ROOM, user }), HEARTBEAT);
    return () => clearInterval(timer);
  }, [update, heartbeat, user, data]);
  return (useQuery(api.presence.list, { room: ROOM }) ?? []).filter((one) => one.user !== user);
}

function useNow() {
  const [now, setNow] = useState(Date.now);
  useEffect(() => {
    const timer = setInterval(() => setNow(Date.now()), 1000);
    return () => clearInterval(timer);
  }, []);
  return now;
}

function Page() {
  const [data, setData] = useState({ face: FACES[0] });
  const others = usePresence(visitor, data);
  const now = useNow();
  const messages = useQuery(api.listMessages.default);
  const send = useMutation(api.sendMessage.default);
  return (
    <Chat title="Presence" messages={messages} send={(body) => send({ body, author: visitor })}>
      <select aria-label="Face" value={data.face} onChange={(event) => setData({ face: event.target.value })}>
        {FACES.map((face) => (
          <option key={face}>{face}</option>
        ))}
      </select>
      <p aria-label="Others">
        {others.map(({ user, created, updated, data }) => (
          <span key={created} title={user} className={now - updated < AWAY ? "here" : "away"}>
            {data.face}
          </span>
        ))}
      </p>
    </Chat>
  );
}

show(<Page />);
