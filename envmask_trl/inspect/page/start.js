// What the reader does: pointer, keys, filters. The page starts here.

const talk = document.getElementById("conversation");
const help = document.getElementById("help");

function showRollout(number) {
  hideFacts();
  if (number < 0) {
    talk.replaceChildren(make("p", {}, "No rollout matches."));
    pane.replaceChildren();
    return;
  }
  const rollout = readRollout(number);
  talk.replaceChildren(...drawConversation(number, rollout));
  pane.replaceChildren(...drawTokens(rollout, filters.elements.search.value));
  talk.scrollTop = pane.scrollTop = 0;
  pane.querySelector(".hit")?.scrollIntoView({ block: "center" });
  if (location.protocol !== "about:") history.replaceState(null, "", `#${number}`);
}

function toggleTheme() {
  const root = document.documentElement;
  const dark = getComputedStyle(root).colorScheme === "dark" || (root.style.colorScheme === "" && matchMedia("(prefers-color-scheme: dark)").matches);
  root.style.colorScheme = dark ? "light" : "dark";
}

const KEYS = {
  j: () => move(1), ArrowDown: () => move(1), k: () => move(-1), ArrowUp: () => move(-1),
  g: () => move(-Infinity), G: () => move(Infinity),
  "/": () => filters.elements.search.focus(), t: toggleTheme, "?": () => (help.open ? help.close() : help.showModal()),
};

function onKey(event) {
  const { key, target } = event;
  if (event.ctrlKey || event.metaKey || event.altKey) return;
  if (target.matches("input, select")) {
    if (key !== "Escape") return;
    list.focus();
    event.preventDefault(); // a search field would clear itself
    return;
  }
  const step = { ArrowLeft: -1, ArrowRight: 1 }[key];
  if (step && target.matches("#tokens span")) focusToken(target, step);
  else if (KEYS[key]) KEYS[key]();
  else return;
  event.preventDefault();
}

function listen() {
  let waiting;
  filters.addEventListener("input", () => {
    clearTimeout(waiting);
    waiting = setTimeout(applyFilters, 150); // while somebody types
  });
  filters.addEventListener("reset", () => setTimeout(applyFilters));
  filters.addEventListener("submit", (event) => event.preventDefault());
  list.addEventListener("scroll", drawRows);
  list.addEventListener("click", (event) => {
    const chosen = event.target.closest(".row");
    if (chosen) select(Number(chosen.dataset.number));
  });
  for (const [name, show] of [["mouseover", true], ["focusin", true], ["mouseout", false], ["focusout", false]]) {
    pane.addEventListener(name, (event) => {
      const span = event.target.closest("span");
      if (span && show) showFacts(span);
      else hideFacts();
    });
  }
  pane.addEventListener("scroll", hideFacts);
  talk.addEventListener("click", (event) => event.target.dataset.turn && showTurn(Number(event.target.dataset.turn)));
  document.addEventListener("keydown", onKey);
  addEventListener("resize", drawRows);
  document.getElementById("theme").addEventListener("click", toggleTheme);
  document.getElementById("help-button").addEventListener("click", () => help.showModal());
}

async function start() {
  await loadData();
  fillFilters();
  listen();
  const asked = Number(location.hash.slice(1) || -1);
  selected = asked in heads ? asked : -1;
  applyFilters();
  document.documentElement.dataset.milliseconds = Math.round(performance.now()); // until the first rollout was shown
}

start().catch((error) => {
  document.getElementById("waiting").textContent = `The rollouts could not be read: ${error.message}`;
});
