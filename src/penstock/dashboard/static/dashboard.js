// Keeps a page of the dashboard live: takes the fragments that the server sends, and changes only what differs, so that
// focus, selection, scrolling and opened details stay as they are. Without it every page and form works, and is static.
"use strict";

const state = document.getElementById("state");

function show(word, text) {
  if (state && state.dataset.state !== word) {
    state.dataset.state = word;
    state.textContent = text;
  }
}

// ----- times

const zone = new Intl.DateTimeFormat(undefined, { timeZoneName: "short" });
const two = (number) => String(number).padStart(2, "0");

function clock(moment) {
  return [moment.getHours(), moment.getMinutes(), moment.getSeconds()].map(two).join(":");
}

function local(moment) {
  const day = [moment.getFullYear(), two(moment.getMonth() + 1), two(moment.getDate())].join("-");
  return `${day} ${clock(moment)} ${zone.formatToParts(moment).find((part) => part.type === "timeZoneName").value}`;
}

const UNITS = [["d", 86400], ["h", 3600], ["min", 60], ["s", 1]];

function age(seconds) {
  const [unit, size] = UNITS.find(([, size]) => seconds >= 2 * size) ?? UNITS.at(-1);
  return `${Math.max(0, Math.floor(seconds / size))} ${unit}`;
}

function relative(moment) { // with the time of the day if it is near
  const seconds = (Date.now() - moment) / 1000;
  const far = Math.abs(seconds) >= 86400;
  const said = Math.abs(seconds) < 2 ? "now" : seconds < 0 ? `in ${age(-seconds)}` : `${age(seconds)} ago`;
  return far ? local(moment) : `${clock(moment)} · ${said}`;
}

const SHOWN = {
  moment: relative,
  clock: (moment) => `${clock(moment)}.${String(moment.getMilliseconds()).padStart(3, "0")}`,
  hour: (moment) => clock(moment).slice(0, 5),
  day: (moment) => moment.toLocaleDateString(undefined, { day: "numeric", month: "short" }),
  age: (moment) => age((Date.now() - moment) / 1000),
};

function tell(time) {
  const moment = new Date(time.dateTime);
  const here = local(moment);
  const text = SHOWN[time.dataset.shown](moment);
  if (time.textContent !== text) time.textContent = text;
  const title = `${here} · ${moment.toISOString()}`;
  if (time.title !== title) time.title = title;
}

function tellAll() {
  document.querySelectorAll("time").forEach(tell);
  const name = zone.formatToParts(new Date()).find((part) => part.type === "timeZoneName").value;
  for (const one of document.querySelectorAll("[data-zone]")) {
    if (one.textContent !== `times in ${name}`) one.textContent = `times in ${name}`;
  }
}

function showMenu() { // which narrow screens scroll
  const here = document.querySelector("nav [aria-current]");
  if (here) here.parentElement.scrollLeft = here.offsetLeft - here.parentElement.clientWidth / 2;
}

// ----- fragments

const KEPT = new Set(["open", "title", "aria-sort", "role", "data-cards", "data-label"]); // what readers and this script change

function changeAttributes(before, after) {
  for (const { name } of [...before.attributes]) {
    if (!after.hasAttribute(name) && !KEPT.has(name)) before.removeAttribute(name);
  }
  for (const { name, value } of after.attributes) {
    if (before.getAttribute(name) !== value && !(KEPT.has(name) && before.hasAttribute(name))) {
      before.setAttribute(name, value);
    }
  }
}

function same(before, after) {
  if (before.nodeType !== after.nodeType || before.nodeName !== after.nodeName) return false;
  return before.nodeType !== Node.ELEMENT_NODE || before.dataset.key === after.dataset.key;
}

function change(before, after) {
  if (before.nodeType !== Node.ELEMENT_NODE) {
    if (before.data !== after.data) before.data = after.data;
    return;
  }
  const moved = before.nodeName === "TIME" && before.dateTime === after.dateTime;
  changeAttributes(before, after);
  if (!moved) changeChildren(before, after);
}

function changeChildren(before, after) {
  const keyed = new Map();
  for (const child of before.children) if (child.dataset.key) keyed.set(child.dataset.key, child);
  let place = before.firstChild;
  for (const wanted of [...after.childNodes]) {
    const known = wanted.nodeType === Node.ELEMENT_NODE ? keyed.get(wanted.dataset.key) : undefined;
    if (known && known !== place && same(known, wanted)) {
      before.insertBefore(known, place);
      change(known, wanted);
    } else if (place && same(place, wanted)) {
      const next = place.nextSibling;
      change(place, wanted);
      place = next;
    } else {
      before.insertBefore(wanted, place);
    }
  }
  while (place) {
    const next = place.nextSibling;
    place.remove();
    place = next;
  }
}

function take(fragments) {
  for (const [name, html] of Object.entries(fragments)) {
    const section = document.querySelector(`[data-live="${CSS.escape(name)}"]`);
    if (!section) continue;
    const wanted = document.createElement("template");
    wanted.innerHTML = html;
    changeChildren(section, wanted.content);
    const sorted = section.querySelector("[aria-sort]");
    if (sorted) sort(sorted);
  }
  enhance();
  tellAll();
}

let source;

function listen() {
  source = new EventSource(location.href);
  source.onopen = () => show("live", "live");
  source.onmessage = (message) => take(JSON.parse(message.data));
  source.onerror = () => {
    show("lost", "reconnecting");
    if (source.readyState === EventSource.CLOSED) setTimeout(listen, 3000); // as after an answer that is no stream
  };
}

// ----- charts

function point(figure, place) { // at a step of it, or at the newest values again
  const [at] = figure.getElementsByClassName("at");
  at.textContent = place === undefined ? "" : local(new Date(Date.parse(figure.dataset.since) + place * figure.dataset.step * 1000)).slice(5, 16);
  for (const line of figure.querySelectorAll("[data-values]")) {
    const values = line.dataset.values.split("|");
    line.lastElementChild.textContent = values[place] ?? values.findLast((value) => value !== "-") ?? "-";
  }
}

document.addEventListener("pointermove", ({ target, clientX }) => {
  const svg = target.closest(".plot svg");
  const figure = svg?.closest("figure");
  for (const one of document.querySelectorAll("figure[data-pointed]")) {
    if (one !== figure) {
      delete one.dataset.pointed;
      point(one);
    }
  }
  if (!figure) return;
  const { left, width } = svg.getBoundingClientRect();
  figure.dataset.pointed = "";
  point(figure, Math.max(0, Math.round((clientX - left) / width * svg.viewBox.baseVal.width)));
});

// ----- sorting, copying

function sort(head) {
  const rows = head.closest("table").tBodies[0];
  const column = head.cellIndex;
  const sign = head.getAttribute("aria-sort") === "descending" ? -1 : 1;
  const value = (row) => {
    const cell = row.cells[column];
    const text = cell?.dataset.value ?? cell?.querySelector("time")?.dateTime ?? cell?.textContent.trim() ?? "";
    const number = Number.parseFloat(text.replaceAll(",", ""));
    return /^[\d,.]+(e-\d+)?\D{0,5}$/.test(text) ? number : text;
  };
  const compare = (a, b) => (typeof a === typeof b ? (a < b ? -1 : a > b ? 1 : 0) : typeof a === "number" ? -1 : 1);
  const sorted = [...rows.rows].sort((a, b) => sign * compare(value(a), value(b)));
  if (sorted.some((row, place) => rows.rows[place] !== row)) rows.append(...sorted);
}

async function copy(button) {
  try {
    await navigator.clipboard.writeText(button.dataset.copy);
    button.textContent = "Copied";
  } catch {
    getSelection().selectAllChildren(button.previousElementSibling); // where the page may not: to be copied by hand
    button.textContent = "Selected";
  }
  setTimeout(() => { button.textContent = "Copy"; }, 1500);
}

document.addEventListener("click", (click) => {
  const button = click.target.closest("[data-copy]");
  if (button) copy(button);
  const head = click.target.closest("[data-sort]")?.closest("th");
  if (head) {
    const order = head.getAttribute("aria-sort") === "ascending" ? "descending" : "ascending";
    head.closest("tr").querySelectorAll("[aria-sort]").forEach((one) => one.removeAttribute("aria-sort"));
    head.setAttribute("aria-sort", order);
    sort(head);
  }
});

document.addEventListener("keydown", (event) => { // "/" goes to the search
  if (event.key !== "/" || event.ctrlKey || event.metaKey || event.altKey || event.target.closest("input, textarea, select")) return;
  event.preventDefault();
  document.querySelector(".search input")?.focus();
});

// ----- boxes

function boxes(all) {
  return all.closest("table").querySelectorAll("tbody [type=checkbox]");
}

document.addEventListener("change", ({ target }) => {
  if ("all" in target.dataset) boxes(target).forEach((box) => { box.checked = target.checked; });
});

// ----- tables, of which narrow screens show each row as a card

const ROLES = { TABLE: "table", TR: "row", TD: "cell" }; // browsers forget them where a table is laid out otherwise

function enhance() {
  document.querySelectorAll("[data-all]").forEach((all) => { all.hidden = false; });
  for (const table of document.querySelectorAll("main table")) {
    const names = [...table.tHead?.rows[0]?.cells ?? []].map((head) => head.textContent.trim());
    table.dataset.cards = "";
    for (const part of [table, ...table.querySelectorAll("tbody tr, tbody td")]) part.setAttribute("role", ROLES[part.nodeName]);
    for (const row of table.tBodies[0]?.rows ?? []) {
      for (const cell of row.cells) {
        if (cell.colSpan === 1 && cell.textContent.trim()) cell.dataset.label = names[cell.cellIndex] ?? "";
      }
    }
  }
}

enhance();

tellAll();
setInterval(tellAll, 1000);
showMenu();
addEventListener("resize", showMenu);
if ("live" in document.body.dataset) {
  listen();
  addEventListener("pagehide", () => source.close());
  addEventListener("pageshow", (event) => { if (event.persisted) listen(); });
}
