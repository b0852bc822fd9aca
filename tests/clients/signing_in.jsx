// A page on `stage.household` that signs in: Convex's React client, and `issueToken` of the test as the provider's library.

import { Authenticated, ConvexProviderWithAuth, ConvexReactClient, Unauthenticated, useConvexAuth, useMutation, useQuery } from "convex/react";
import { anyApi } from "convex/server";
import { createContext, StrictMode, useCallback, useContext, useState } from "react";
import { createRoot } from "react-dom/client";

const api = anyApi.stage.household;
const convex = new ConvexReactClient(location.origin);
const Session = createContext();

function useAuth() {
  const { user, sign } = useContext(Session);
  const fetchAccessToken = useCallback(async () => {
    const token = await issueToken(user);
    if (token === null) sign(null); // its session has ended
    return token;
  }, [user]);
  return { isLoading: false, isAuthenticated: user !== null, fetchAccessToken };
}

function Page() {
  const [user, setUser] = useState(localStorage.getItem("user"));
  function sign(name) {
    if (name) localStorage.setItem("user", name);
    else localStorage.removeItem("user");
    setUser(name);
  }
  return (
    <Session value={{ user, sign }}>
      <ConvexProviderWithAuth client={convex} useAuth={useAuth}>
        <Caller />
        <Unauthenticated>
          <button onClick={() => sign("ada")}>Ada</button>
          <button onClick={() => sign("bob")}>Bob</button>
        </Unauthenticated>
        <Authenticated>
          <button onClick={() => sign(null)}>Sign out</button>
          <Papers />
        </Authenticated>
      </ConvexProviderWithAuth>
    </Session>
  );
}

function Caller() {
  const { isLoading, isAuthenticated } = useConvexAuth();
  const caller = useQuery(api.whoami, isLoading ? "skip" : {});
  const state = isLoading ? "loading" : isAuthenticated ? "signed in" : "signed out";
  return <p role="status">{`${state}: ${caller === undefined ? "…" : (caller?.subject ?? "nobody")}`}</p>;
}

function Papers() {
  const papers = useQuery(api.papers);
  const write = useMutation(api.write);
  return (
    <>
      <button onClick={() => write({ text: "a paper" })}>Write</button>
      <ul>{papers?.map((text, number) => <li key={number}>{text}</li>)}</ul>
    </>
  );
}

createRoot(document.getElementById("page")).render(
  <StrictMode>
    <Page />
  </StrictMode>,
);
