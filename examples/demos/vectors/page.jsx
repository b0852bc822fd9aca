import { useAction, useQuery } from "convex/react";
import { anyApi as api } from "convex/server";
import { useState } from "react";
import { Line, show } from "../page/chat.jsx";

const CUISINES = ["french", "indian", "mexican"];

function Page() {
  const foods = useQuery(api.foods.list) ?? [];
  const insert = useAction(api.foods.insert);
  const search = useAction(api.search.similarFoods);
  const [cuisine, setCuisine] = useState(CUISINES[0]);
  const [only, setOnly] = useState(false);
  const [found, setFound] = useState([]);
  const look = async (query) => setFound(await search({ query, cuisines: only ? [cuisine] : undefined }));
  return (
    <>
      <h1>Foods</h1>
      <select aria-label="Cuisine" value={cuisine} onChange={(event) => setCuisine(event.target.value)}>
        {CUISINES.map((name) => (
          <option key={name}>{name}</option>
        ))}
      </select>
      <Line label="Food" button="Add" enter={(description) => insert({ cuisine, description })} />
      <ul aria-label="Foods">
        {foods.map(({ _id, description, cuisine }) => (
          <li key={_id}>
            {description} ({cuisine})
          </li>
        ))}
      </ul>
      <label>
        <input type="checkbox" checked={only} onChange={(event) => setOnly(event.target.checked)} /> this cuisine only
      </label>
      <Line label="Search" button="Search" enter={look} />
      <ol aria-label="Found">
        {found.map(({ _id, _score, description }) => (
          <li key={_id} title={_score}>
            {description}
          </li>
        ))}
      </ol>
    </>
  );
}

show(<Page />);
