import { useMutation, usePaginatedQuery } from "convex/react";
import { anyApi as api } from "convex/server";
import { useState } from "react";
import { Chat, show, visitor } from "../page/chat.jsx";

const PAGE = 5;

const LISTS = {
  all: [api.messages.list, {}],
  mine: [api.messages.listWithExtraArg, { author: visitor }],
  short: [api.messages.listWithTransformation, {}],
};

function Page() {
  const [list, setList] = useState("all");
  const [query, args] = LISTS[list];
  const { results, status, loadMore } = usePaginatedQuery(query, args, { initialNumItems: PAGE });
  const send = useMutation(api.messages.send);
  return (
    <>
      <Chat title="Pages" messages={results} send={(body) => send({ body, author: visitor })}>
        <select aria-label="List" value={list} onChange={(event) => setList(event.target.value)}>
          {Object.keys(LISTS).map((name) => (
            <option key={name}>{name}</option>
          ))}
        </select>
      </Chat>
      <button disabled={status !== "CanLoadMore"} onClick={() => loadMore(PAGE)}>
        Load more
      </button>
    </>
  );
}

show(<Page />);
