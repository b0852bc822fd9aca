import { Authenticated, ConvexProviderWithAuth, Unauthenticated, useConvexAuth, useMutation, useQuery } from "convex/react";
import { anyApi as api } from "convex/server";
import { createContext, useCallback, useContext, useEffect, useState } from "react";
import { Chat, Line, server, show } from "../page/chat.jsx";

// What the library of a provider does: it remembers who has signed in, and fetches tokens.
const Session = createContext();

async function fetchToken(name) {
  for (;;) {
    try {
      const answer = await fetch(`${server}/token`, { method: "POST", body: name });
      return answer.ok ? await answer.text() : null;
    } catch {
      await new Promise((resolve) => setTimeout(resolve, 500)); // the server is away
    }
  }
}

function useSession() {
  const [name, setName] = useContext(Session);
  const fetchAccessToken = useCallback(() => fetchToken(name), [name]);
  return { isLoading: false, isAuthenticated: Boolean(name), fetchAccessToken, name, setName };
}

function useStoredUser() {
  const { isAuthenticated } = useConvexAuth();
  const { name } = useSession();
  const store = useMutation(api.users.store);
  const [user, setUser] = useState(null);
  useEffect(() => {
    if (isAuthenticated) store().then(setUser);
    return () => setUser(null);
  }, [isAuthenticated, name, store]);
  return user;
}

function Page() {
  const { name, setName } = useSession();
  const user = useStoredUser();
  const messages = useQuery(api.messages.list);
  const send = useMutation(api.messages.send);
  return (
    <Chat title="Users" author={name} messages={messages} send={user && ((body) => send({ body }))}>
      <button onClick={() => setName("")}>Sign out</button>
    </Chat>
  );
}

function SignIn() {
  return <Line label="Your name" button="Sign in" enter={useSession().setName} />;
}

function Provider({ client, children }) {
  const [name, setName] = useState(localStorage.name ?? "");
  useEffect(() => void (localStorage.name = name), [name]);
  return (
    <Session.Provider value={[name, setName]}>
      <ConvexProviderWithAuth client={client} useAuth={useSession}>
        {children}
      </ConvexProviderWithAuth>
    </Session.Provider>
  );
}

show(
  <>
    <Authenticated>
      <Page />
    </Authenticated>
    <Unauthenticated>
      <SignIn />
    </Unauthenticated>
  </>,
  Provider,
);
