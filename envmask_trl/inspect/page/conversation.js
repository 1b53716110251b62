// The conversation of the rollout that is shown: facts, messages, calls, results.

function drawConversation(number, rollout) {
  const head = heads[number];
  const facts = head.facts.map(([name, value]) => make("li", {}, `${name} `, make("b", {}, value)));
  const latency = head.latency ? `, ${head.latency} s in tools` : "";
  const [prompt, completion, trained] = head.tokens;
  return [
    make("h2", {}, `#${number}`),
    make("ul", { class: "facts" }, ...facts),
    make("p", {}, `${prompt} prompt + ${completion} completion tokens, ${trained} trained${latency}`),
    ...rollout.talk.map(message),
  ];
}

function message(turn) {
  const role = turn.turn === undefined ? turn.role : `${turn.role}, turn ${turn.turn}`;
  const heading = make("h3", {}, turn.turn === undefined ? role : make("button", { "data-turn": turn.turn, title: "show its tokens" }, role));
  if (turn.result) heading.append(...result(turn.result));
  if (turn.unseen) heading.append(" not in the row: the rollout ended before the model answered it");
  const element = make("article", { class: turn.given ? "prompt" : kind(turn.role) }, heading);
  for (const [name, value] of turn.extras ?? []) element.append(make("h4", {}, name), text(value));
  if (turn.text) element.append(text(turn.text));
  for (const [name, args] of turn.calls ?? []) element.append(make("h4", {}, "calls ", make("b", {}, name)), text(args));
  return element;
}

function result([name, status, seconds]) {
  return [make("b", {}, name), make("i", { class: status === "ok" ? "good" : "bad" }, status), `${Number(seconds.toPrecision(3))} s`];
}

function kind(role) {
  return { assistant: "model", model: "model", tool: "env", env: "env", template: "template" }[role] ?? "prompt";
}

function text(content) {
  return make("pre", { dir: "auto" }, content);
}
