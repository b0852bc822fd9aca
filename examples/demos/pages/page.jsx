import { useMutation, usePaginatedQuery } from "convex/react";
import { anyApi as api } from "convex/server";
import { useState } from "react";
import { Chat, show, visitor } from "../page/chat.jsx";

const PAGE = 5;

function Page() {
  const [own, setOwn] = useState(false);
  const [query, args] = own ? [api.messages.listWithExtraArg, { author: visitor }] : [api.messages.list, {}];
  const { results, status, loadMore } = usePaginatedQuery(query, args, { initialNumItems: PAGE });
  const send = useMutation(api.messages.send);
  return (
    <>
      <Chat title="Pages" messages={results} send={(body) => send({ body, author: visitor })}>
        <label>
          <input type="checkbox" checked={own} onChange={(event) => setOwn(event.target.checked)} /> only mine
        </label>
      </Chat>
      <button disabled={status !== "CanLoadMore"} onClick={() => loadMore(PAGE)}>
        Load more
      </button>
    </>
  );
}

show(<Page />);
