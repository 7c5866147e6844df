// Load data from classic scripts `data/NAME.js`, each of which calls jx(NAME, TEXT). TEXT is JSON, deflated, in base64.
"use strict";
const JX = { waiting: {}, kept: new Map(), stamp: 0, live: false, onStamp: () => {} };
window.JX = JX;
JX.ready = new Promise((done) => { JX.isReady = done; });

window.jx = (name, text) => { if (JX.waiting[name]) JX.waiting[name](text); };
window.jxStamp = (stamp, live) => { JX.live = live; JX.onStamp(stamp, live); };

JX.script = (address) => new Promise((done, fail) => {
  const element = document.createElement("script");
  element.onload = () => { element.remove(); done(); };
  element.onerror = () => { element.remove(); fail(new Error(`${address} cannot be read`)); };
  element.src = address;
  document.head.append(element);
});

JX.bytes = (text) => {
  if (Uint8Array.fromBase64) return Uint8Array.fromBase64(text);
  const whole = atob(text), bytes = new Uint8Array(whole.length);
  for (let i = 0; i < whole.length; i++) bytes[i] = whole.charCodeAt(i);
  return bytes;
};

JX.unpack = async (text) => {
  const stream = new Blob([JX.bytes(text)]).stream().pipeThrough(new DecompressionStream("deflate-raw"));
  return JSON.parse(await new Response(stream).text());
};

// Return the data in `data/NAME.js`; they are read once, and again when the folder has grown.
JX.load = (name) => {
  const key = `${name}?${JX.stamp}`;
  if (!JX.kept.has(key)) {
    JX.kept.set(key, (async () => {
      let text = null;
      JX.waiting[name] = (found) => { text = found; };
      await JX.script(`data/${key.replace("?", ".js?")}`);
      if (text === null) throw new Error(`data/${name}.js is not a chunk of this folder`);
      return JX.unpack(text);
    })());
    if (JX.kept.size > 60) JX.kept.delete(JX.kept.keys().next().value);
  }
  return JX.kept.get(key);
};

// The index of all groups: a typed array per column, and the texts that the numbers refer to.
JX.makeIndex = (raw) => {
  const index = { words: raw.words, uids: raw.uids, right: raw.right, rewards: Float32Array.from(raw.rewards, (x) => (x === null ? NaN : x)) };
  for (const [name, values] of Object.entries(raw.columns)) index[name] = Uint32Array.from(values);
  index.size = index.step.length;
  index.start = new Uint32Array(index.size + 1);
  for (let i = 0; i < index.size; i++) index.start[i + 1] = index.start[i] + index.count[i];
  index.part = new Uint32Array(index.size);
  index.place = new Uint32Array(index.size);
  index.first = new Uint32Array(raw.parts.length + 1);
  raw.parts.forEach((size, part) => { index.first[part + 1] = index.first[part] + size; });
  let at = 0;
  raw.parts.forEach((size, part) => { for (let i = 0; i < size; i++, at++) { index.part[at] = part; index.place[at] = i; } });
  index.best = new Float32Array(index.size);
  for (let i = 0; i < index.size; i++) {
    let best = NaN;
    for (let j = index.start[i]; j < index.start[i + 1]; j++) if (!(best >= index.rewards[j])) best = index.rewards[j];
    index.best[i] = best;
  }
  index.order = Uint32Array.from({ length: index.size }, (_, i) => i);
  index.order.sort((a, b) => index.run[a] - index.run[b] || index.step[a] - index.step[b] || index.phase[a] - index.phase[b] || a - b);
  return index;
};

// The name of a group in addresses, its part and its index there; it does not change when the folder grows.
JX.idOf = (index, i) => `${index.part[i]}.${index.place[i]}`;
JX.numberOf = (index, id) => {
  const [part, at] = String(id).split(".").map(Number);
  const found = index.first[part] + at;
  return found < index.first[part + 1] ? found : NaN;
};

JX.FLAGS = { nosignal: 1, suspicious: 2, constant: 4, judged: 8, truncated: 16 };

// The groups that match all filters, in order: a Uint32Array of their numbers. `flips` maps a group to 1 (better) or -1.
JX.filter = (index, texts, f, flips) => {
  const word = (name, value) => (value ? index.words[name].indexOf(value) : -2);
  const phase = word("phases", f.phase), db = word("dbs", f.db), hardness = word("hardness", f.hardness);
  const status = f.status ? 1 << index.words.statuses.indexOf(f.status) : 0;
  const from = f.from ? +f.from : 0, to = f.to ? +f.to : Infinity, run = f.run ? +f.run : -1;
  const question = f.question ? +f.question : -1;
  const flag = JX.FLAGS[f.only] || 0, flip = { better: 1, worse: -1, flipped: 0 }[f.only];
  const text = f.text && texts ? f.text.toLowerCase() : "";
  const matches = text ? texts.questions.map((one) => one.includes(text)) : null;
  const found = new Uint32Array(index.size);
  let n = 0;
  for (const i of index.order) {
    if (phase !== -2 && index.phase[i] !== phase) continue;
    if (db !== -2 && index.db[i] !== db) continue;
    if (hardness !== -2 && index.hardness[i] !== hardness) continue;
    if (run !== -1 && index.run[i] !== run) continue;
    if (question !== -1 && index.question[i] !== question) continue;
    if (index.step[i] < from || index.step[i] > to) continue;
    if (status && !(index.statuses[i] & status)) continue;
    if (flag && !(index.flags[i] & flag)) continue;
    if (flip !== undefined && !(flip ? flips.get(i) === flip : flips.has(i))) continue;
    if (text && !matches[index.question[i]] && !texts.sqls[i].includes(text)) continue;
    found[n++] = i;
  }
  return found.subarray(0, n);
};

// All evaluations in order: {run, phase, step, groups: question -> group}.
JX.evaluations = (index) => {
  const found = new Map();
  for (let i = 0; i < index.size; i++) {
    const phase = index.words.phases[index.phase[i]];
    if (!phase.startsWith("eval")) continue;
    const key = `${index.run[i]}|${phase}|${index.step[i]}`;
    if (!found.has(key)) found.set(key, { key, run: index.run[i], phase, step: index.step[i], groups: new Map() });
    found.get(key).groups.set(index.question[i], i);
  }
  return [...found.values()].sort((a, b) => a.run - b.run || a.phase.localeCompare(b.phase) || a.step - b.step);
};

const SIDES = { better: 1, worse: -1, both: 0, neither: 0 };
const sideOf = (was, is) => (is > was ? "better" : is < was ? "worse" : is >= 1 ? "both" : "neither");
const noSides = () => Object.fromEntries(Object.keys(SIDES).map((name) => [name, []]));

// Compare two evaluations by question: {better, worse, both, neither}, lists of [group of a, group of b].
JX.compare = (index, a, b) => {
  const sides = noSides();
  for (const [question, mine] of a.groups) {
    const other = b.groups.get(question);
    if (other !== undefined) sides[sideOf(index.best[mine] || 0, index.best[other] || 0)].push([mine, other]);
  }
  return sides;
};

// The same for a folder of `evaluate --compare`, where a group has both answers: lists of [group, group].
JX.compared = (index) => {
  const sides = noSides(), phase = index.words.phases.indexOf("comparison");
  for (let i = 0; i < index.size; i++) if (index.phase[i] === phase) sides[sideOf(...JX.ends(index, i, i))].push([i, i]);
  return sides;
};

// The rewards of a pair that `compare` or `compared` returned.
JX.ends = (index, mine, other) => (mine === other ? [0, 1].map((k) => index.rewards[index.start[mine] + k]) : [index.best[mine], index.best[other]]).map((one) => one || 0);

// The default pair of evaluations to compare: of two runs the last of each, else the last two of a split.
JX.usualPair = (evaluations) => {
  const last = evaluations.at(-1);
  if (!last) return null;
  const others = evaluations.filter((one) => one !== last && one.run !== last.run);
  const same = evaluations.filter((one) => one !== last && one.run === last.run && one.phase === last.phase);
  const other = others.filter((one) => one.phase === last.phase).at(-1) || same.at(-1) || others.at(-1);
  return other ? [other, last] : null;
};

// Groups whose score changed between the default pair of each split, in both evaluations: group -> 1 (better) or -1.
JX.flips = (index, evaluations) => {
  const found = new Map();
  const note = (sides) => { for (const name of ["better", "worse"]) for (const pair of sides[name]) for (const i of pair) found.set(i, SIDES[name]); };
  for (const phase of new Set(evaluations.map((one) => one.phase))) {
    const pair = JX.usualPair(evaluations.filter((one) => one.phase === phase));
    if (pair) note(JX.compare(index, ...pair));
  }
  note(JX.compared(index));
  return found;
};
