// The list of rollouts and its filters. Draws only the rows that are in sight.

const ROW_HEIGHT = 64; // pixels, as .row in page.css
let matching = []; // numbers of the rollouts that the filters let through
let selected = -1; // number of the rollout that is shown
const list = document.getElementById("list");
const rows = document.getElementById("rows");
const filters = document.getElementById("filters");

function fillFilters() {
  const options = (name, values, label) => {
    for (const value of values) filters.elements[name].append(make("option", { value }, label(value)));
    filters.elements[name].disabled = values.length === 0;
  };
  const distinct = (values) => [...new Set(values)];
  options("step", distinct(heads.map((head) => head.step)).filter((step) => step !== null), (step) => `step ${step}`);
  options("stop", distinct(heads.map((head) => head.stop)), (stop) => stop);
  options("tool", distinct(heads.flatMap((head) => head.tools)), (tool) => `calls ${tool}`);
  filters.elements.tool.append(new Option("calls nothing", "\nnone"), new Option("has a failed call", "\nfailed"));
  filters.elements.tool.disabled = false;
  const functions = distinct(heads.flatMap((head) => Object.keys(head.rewards)));
  options("reward", functions, (name) => name);
  if (heads.some((head) => head.advantage !== null)) filters.elements.reward.append(new Option("advantage", "\nadvantage"));
  filters.elements.reward.disabled = filters.elements.reward.length === 0;
}

function callsMatch(head, tool) {
  if (tool === "\nnone") return head.tools.length === 0;
  if (tool === "\nfailed") return head.failed > 0;
  return tool === "" || head.tools.includes(tool);
}

function valueMatches(head, { reward, least, most }) {
  if (least === "" && most === "") return true;
  const value = reward === "\nadvantage" ? head.advantage : head.rewards[reward];
  if (typeof value !== "number") return false; // not scored, or not a number
  return (least === "" || value >= Number(least)) && (most === "" || value <= Number(most));
}

function applyFilters() {
  const wanted = Object.fromEntries(new FormData(filters));
  const search = wanted.search.toLowerCase();
  matching = [...heads.keys()].filter((number) => {
    const head = heads[number];
    if (wanted.step && String(head.step) !== wanted.step) return false;
    if (wanted.stop && head.stop !== wanted.stop) return false;
    if (!callsMatch(head, wanted.tool ?? "") || !valueMatches(head, wanted)) return false;
    return search === "" || searchText(number).includes(search);
  });
  document.getElementById("count").textContent = `${matching.length} of ${heads.length}`;
  rows.style.height = `${matching.length * ROW_HEIGHT}px`;
  select(matching.includes(selected) ? selected : (matching[0] ?? -1));
}

function select(number) {
  selected = number;
  const top = matching.indexOf(number) * ROW_HEIGHT;
  if (top < list.scrollTop) list.scrollTop = top;
  if (top + ROW_HEIGHT > list.scrollTop + list.clientHeight) list.scrollTop = top + ROW_HEIGHT - list.clientHeight;
  drawRows();
  showRollout(number);
}

function move(by) {
  if (matching.length === 0) return;
  const place = Math.min(Math.max(matching.indexOf(selected) + by, 0), matching.length - 1);
  select(matching[place]);
}

function drawRows() {
  const first = Math.max(Math.floor(list.scrollTop / ROW_HEIGHT) - 5, 0);
  const last = Math.ceil((list.scrollTop + list.clientHeight) / ROW_HEIGHT) + 5;
  rows.replaceChildren(...matching.slice(first, last).map((number, offset) => row(number, first + offset)));
  list.setAttribute("aria-activedescendant", `row-${selected}`);
}

function row(number, place) {
  const head = heads[number];
  const scores = Object.entries(head.rewards).map(([name, value]) => `${name} ${value ?? "none"}`);
  if (head.advantage !== null) scores.push(`advantage ${head.advantage}`);
  const calls = head.tools.length ? head.tools.join(", ") : "no calls";
  const failed = head.failed ? make("i", { class: "bad" }, ` ${head.failed} failed`) : "";
  const element = make("div", {
    id: `row-${number}`, class: "row", role: "option", "aria-selected": number === selected,
    "aria-posinset": place + 1, "aria-setsize": matching.length,
  });
  element.append(
    make("p", {}, make("b", {}, `#${number}`), ` ${head.step === null ? "" : `step ${head.step} `}`,
      make("i", { class: head.unfinished ? "bad" : "good" }, head.stop), failed),
    make("p", {}, head.opening || calls),
    make("p", {}, scores.join("  ") || `${head.tokens[1]} tokens`),
  );
  element.dataset.number = number;
  element.style.top = `${place * ROW_HEIGHT}px`;
  return element;
}
