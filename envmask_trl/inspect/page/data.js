"use strict";
// The rollouts of the page. Knows the format that page_data.py writes: no elements but the one that holds it.

let heads = []; // the facts of each rollout
let vocabulary = {}; // ids, texts, exact, breaks: parallel lists
let lines = []; // the JSON of each rollout, read when it is looked at
const searchable = []; // the lower-case text of each rollout, made at the first search

async function loadData() {
  const packed = atob(document.getElementById("data").textContent);
  const bytes = new Uint8Array(packed.length);
  for (let at = 0; at < packed.length; at += 1) bytes[at] = packed.charCodeAt(at);
  const stream = new Blob([bytes]).stream().pipeThrough(new DecompressionStream("deflate"));
  lines = (await new Response(stream).text()).split("\n");
  vocabulary = JSON.parse(lines.shift());
  heads = JSON.parse(lines.shift());
}

// One rollout: { talk, prompt: [token], completion: [token] }.
function readRollout(number) {
  const body = JSON.parse(lines[number]);
  const token = (position) => ({
    id: vocabulary.ids[position], text: vocabulary.texts[position],
    exact: vocabulary.exact[position], breaks: vocabulary.breaks[position],
  });
  const completion = [];
  let sampled = 0; // tokens of the model so far
  for (const [source, turn, mask, length] of body.runs) {
    for (let count = 0; count < length; count += 1) {
      const at = completion.length;
      const logprob = (source === "model" ? body.logprobs[sampled++] : null) ?? null;
      const advantage = body.advantages ? body.advantages[at] : heads[number].advantage;
      completion.push({ ...token(body.completion[at]), source, turn, mask, logprob, advantage });
    }
  }
  const foreign = { source: "prompt", turn: -1, mask: 0, logprob: null, advantage: null };
  return { talk: body.talk, prompt: body.prompt.map((position) => ({ ...token(position), ...foreign })), completion };
}

// Tokens and messages: a character that lies in two tokens is found in the message.
function searchText(number) {
  if (searchable[number] === undefined) {
    const body = JSON.parse(lines[number]);
    const tokens = [...body.prompt, ...body.completion].map((position) => vocabulary.texts[position]).join("");
    const turns = body.talk.map((turn) => [turn.text, turn.calls, turn.extras, turn.result].flat(2).join("\n"));
    searchable[number] = [tokens, ...turns].join("\n").toLowerCase();
  }
  return searchable[number];
}

// An element with its children; strings become text, never markup.
function make(tag, attributes, ...children) {
  const element = document.createElement(tag);
  for (const [name, value] of Object.entries(attributes)) element.setAttribute(name, value);
  element.append(...children);
  return element;
}
