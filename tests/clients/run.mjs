// Calls the program of every kind with its generated api: writes an order, and shows the page that holds it.

import { ConvexHttpClient } from "convex/browser";
import { api } from "./everykind/api.js";

const client = new ConvexHttpClient(process.argv[2]);
const { put, list } = api.programs.everykind;
await client.mutation(put, { customer: "Ada", price: "9.99", data: new Uint8Array([255]).buffer });
const { page } = await client.query(list, { customer: "Ada", paginationOpts: { numItems: 5, cursor: null } });
console.log(JSON.stringify(page.map(({ customer, price, data }) => ({ customer, price, bytes: data.byteLength }))));
