// The tokens of the rollout that is shown, and the facts of the one under the pointer or in focus.

const OPEN_PROMPT = 40; // tokens; a longer prompt is folded away until it is asked for
let tokens = []; // those that are drawn or could be, prompt first
const facts = document.getElementById("facts");
const pane = document.getElementById("tokens");

function drawTokens(rollout, search) {
  tokens = [...rollout.prompt, ...rollout.completion];
  const hits = search ? found(search.toLowerCase()) : new Set();
  const length = rollout.prompt.length;
  const inPrompt = [...hits].some((at) => at < length);
  const prompt = make("details", {}, make("summary", {}, `prompt, ${length} tokens`));
  const unfold = () => prompt.children.length < 2 && prompt.append(spans(0, length, hits));
  prompt.addEventListener("toggle", () => prompt.open && unfold());
  if (length <= OPEN_PROMPT || inPrompt) {
    unfold();
    prompt.open = true;
  }
  return [strip(rollout.completion), prompt, spans(length, tokens.length, hits)];
}

// Positions of the tokens that a match touches.
function found(search) {
  const starts = [];
  let all = "";
  for (const token of tokens) {
    starts.push(all.length);
    all += token.text;
  }
  const hits = new Set();
  const lower = all.toLowerCase();
  let at = 0;
  for (let from = lower.indexOf(search); from >= 0; from = lower.indexOf(search, from + search.length)) {
    while (at + 1 < starts.length && starts[at + 1] <= from) at += 1;
    for (let next = at; next < starts.length && starts[next] < from + search.length; next += 1) hits.add(next);
  }
  return hits;
}

function spans(from, to, hits) {
  const block = make("div", { class: "ids" });
  for (let at = from; at < to; at += 1) {
    const { text, source, mask, breaks } = tokens[at];
    const span = make("span", { class: hits.has(at) ? `${source} hit` : source, tabindex: at === from ? 0 : -1, "data-at": at }, text || "∅");
    span.append(make("b", {}, mask));
    block.append(span);
    if (breaks) block.append(make("br", {}));
  }
  return block;
}

// The completion at a glance: one bar per author, as long as its share.
function strip(completion) {
  const bars = make("div", { class: "strip", "aria-hidden": "true" });
  let start = 0;
  completion.forEach(({ source }, at) => {
    if (at + 1 < completion.length && completion[at + 1].source === source) return;
    const bar = make("i", { class: source });
    bar.style.flexGrow = at + 1 - start;
    bars.append(bar);
    start = at + 1;
  });
  return bars;
}

function showFacts(span) {
  const { exact, id, source, turn, logprob, advantage, mask } = tokens[span.dataset.at];
  const probability = typeof logprob === "number" ? ` (probability ${Math.exp(logprob).toFixed(4)})` : "";
  const entries = [
    ["text", exact], ["id", id], ["source", turn < 0 ? source : `${source}, turn ${turn}`],
    ["log-prob", logprob === null ? "none" : `${logprob}${probability}`],
    ["advantage", mask && advantage !== null ? advantage : "none"], ["mask", mask ? "1, trained" : "0, not trained"],
  ];
  facts.replaceChildren(...entries.flatMap(([name, value]) => [make("dt", {}, name), make("dd", {}, String(value))]));
  facts.hidden = false;
  const box = span.getBoundingClientRect();
  const below = box.bottom + 6 + facts.offsetHeight < innerHeight;
  facts.style.top = `${below ? box.bottom + 6 : Math.max(box.top - 6 - facts.offsetHeight, 0)}px`;
  facts.style.left = `${Math.max(Math.min(box.left, innerWidth - facts.offsetWidth - 8), 8)}px`;
}

function hideFacts() {
  facts.hidden = true;
}

function focusToken(span, by) {
  const drawn = [...pane.querySelectorAll("span")];
  drawn[drawn.indexOf(span) + by]?.focus();
}

function showTurn(turn) {
  const at = tokens.findIndex((token) => token.turn === turn);
  pane.querySelector(`[data-at="${at}"]`)?.focus();
}
