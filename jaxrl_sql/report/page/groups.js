// The filtered list of groups, the page of a group with its answers side by side, and the comparison of two evaluations.
"use strict";
(() => {
  const { html, useEffect, useMemo, useRef, useState } = preact;
  const PAGE = 50;
  const ONLY = { nosignal: "groups without a signal", suspicious: "suspicious: right by bird, wrong by refined or the suite", constant: "right, and reads no table",
    truncated: "with cut off answers", flipped: "flipped between two evaluations", better: "became better", worse: "became worse" };
  const hashOf = (page, query) => `#/${page}?${new URLSearchParams(Object.entries(query).filter(([, value]) => value !== "" && value !== undefined && value !== null))}`;
  JX.hashOf = hashOf;

  function Select({ name, label, value, options, set }) {
    return html`<label>${label}<select name=${name} aria-label=${label} value=${value || ""} onChange=${(e) => set({ [name]: e.target.value })}>
      <option value="">any</option>${options.map(([key, text]) => html`<option value=${key} selected=${key === value}>${text}</option>`)}</select></label>`;
  }

  function Filters({ query, head, index, set }) {
    const lists = useMemo(() => Object.fromEntries(Object.entries(index.words).map(([name, all]) =>
      [name, all.filter(Boolean).map((one) => [one, one]).sort((a, b) => a[1].localeCompare(b[1]))])), [index]);
    const words = (name) => lists[name];
    return html`<form class="filters" role="search" aria-label="filters" onSubmit=${(e) => e.preventDefault()}>
      <label>text<input type="search" name="text" aria-label="text: question or SQL" value=${query.text || ""} placeholder="question or SQL, key /" onInput=${(e) => set({ text: e.target.value })} /></label>
      ${head.runs.length > 1 && html`<${Select} name="run" label="run" value=${query.run} set=${set} options=${head.runs.map((one, i) => [`${i}`, one.name])} />`}
      <${Select} name="phase" label="phase" value=${query.phase} set=${set} options=${words("phases")} />
      <label>steps from<input type="number" name="from" aria-label="steps from" value=${query.from || ""} onInput=${(e) => set({ from: e.target.value })} /></label>
      <label>to<input type="number" name="to" aria-label="steps to" value=${query.to || ""} onInput=${(e) => set({ to: e.target.value })} /></label>
      <${Select} name="db" label="database" value=${query.db} set=${set} options=${words("dbs")} />
      <${Select} name="status" label="status" value=${query.status} set=${set} options=${words("statuses")} />
      <${Select} name="hardness" label="difficulty" value=${query.hardness} set=${set} options=${words("hardness")} />
      <${Select} name="only" label="only" value=${query.only} set=${set} options=${Object.entries(ONLY)} />
      <button type="button" onClick=${() => { window.location.hash = "#/groups"; }}>all</button></form>`;
  }

  // A dot per answer, filled if it is right, and the mean reward; one text, as a list has hundreds.
  const DOTS = { 1: "●", 0: "○" }, UNKNOWN = "·";
  function Dots({ index, i }) {
    const all = [...index.rewards.subarray(index.start[i], index.start[i + 1])], rewards = all.filter((one) => !Number.isNaN(one));
    const right = index.right.slice(index.start[i], index.start[i + 1]), count = right.filter((one) => one === 1).length;
    const isKnown = right.some((one) => one !== null), tone = !isKnown || (count && count < right.length) ? "" : count ? "good" : "bad";
    const name = `${right.length === 1 ? "1 answer" : `${right.length} answers`}, ${isKnown ? `${count} right` : "not judged"}`;
    const mean = rewards.length ? rewards.reduce((a, b) => a + b, 0) / rewards.length : null;
    return html`<span class=${`dots ${tone}`} role="img" aria-label=${name} title=${name}>${right.slice(0, 32).map((one) => DOTS[one] || UNKNOWN).join("")}</span> ${JX.number(mean)}`;
  }

  function marks(index, i) {
    return Object.entries({ nosignal: "no signal", suspicious: "suspicious", constant: "constant", truncated: "cut off" }).filter(([name]) => index.flags[i] & JX.FLAGS[name]);
  }

  function Line({ index, texts, i, query, run }) {
    const statuses = index.words.statuses.filter((_, bit) => index.statuses[i] & (1 << bit));
    return html`<tr><td class="number">${index.step[i]}</td><td class="dim">${run}${index.words.phases[index.phase[i]]}</td>
      <td class="question"><a href=${hashOf(`group/${JX.idOf(index, i)}`, query)}>${texts ? texts.questions[index.question[i]] || index.uids[index.question[i]] : index.uids[index.question[i]]}</a></td>
      <td>${index.words.dbs[index.db[i]]}</td><td>${index.words.hardness[index.hardness[i]]}</td><td class="number"><${Dots} index=${index} i=${i} /></td>
      <td>${statuses.map((one) => html`<${JX.Pill} text=${one} />`)}${marks(index, i).map(([, text]) => html`<${JX.Pill} text=${text} tone="warn" />`)}</td></tr>`;
  }

  JX.GroupsPage = ({ query, head, data }) => {
    const { index, texts, low, flips } = data;
    const set = (more) => window.history.replaceState(null, "", hashOf("groups", { ...query, page: "", ...more })) || window.dispatchEvent(new HashChangeEvent("hashchange"));
    const key = JSON.stringify({ ...query, page: "" });
    const found = useMemo(() => JX.timed(() => JX.filter(index, low, query, flips)), [key, index, low]);
    const page = Math.min(+query.page || 0, Math.max(0, Math.ceil(found.length / PAGE) - 1));
    const shown = found.subarray(page * PAGE, page * PAGE + PAGE);
    const turn = (by) => hashOf("groups", { ...query, page: page + by || "" });
    return html`<h1>Answers</h1><${Filters} query=${query} head=${head} index=${index} set=${set} />
      <p role="status"><b>${found.length.toLocaleString("en")}</b> of ${index.size.toLocaleString("en")} groups${query.text && !texts ? ", the text is being read …" : ""}${query.question ? ` of question ${index.uids[+query.question]}` : ""}</p>
      ${found.length > 0 && html`<table class="list"><thead><tr><th scope="col" class="number">step</th><th scope="col">phase</th><th scope="col">question</th><th scope="col">database</th><th scope="col">difficulty</th><th scope="col" class="number" title="● right, ○ wrong, · not judged; then the mean reward">right, mean reward</th><th scope="col">status</th></tr></thead>
        <tbody>${[...shown].map((i) => html`<${Line} key=${i} index=${index} texts=${texts} i=${i} query=${query} run=${head.runs.length > 1 ? `${head.runs[index.run[i]].name} · ` : ""} />`)}</tbody></table>`}
      ${found.length > PAGE && html`<nav class="steps" aria-label="pages">${page > 0 && html`<a rel="prev" href=${turn(-1)}>earlier</a>`}<span>${page * PAGE + 1} to ${Math.min(found.length, page * PAGE + PAGE)}</span>${(page + 1) * PAGE < found.length && html`<a rel="next" href=${turn(1)}>later</a>`}</nav>`}`;
  };

  // Return groups from their parts, once the parts are loaded.
  function useGroups(index, numbers) {
    const [state, set] = useState({});
    const key = `${JX.stamp}:${numbers.join()}`;
    useEffect(() => {
      let isGone = false;
      const name = (i) => `part-${String(index.part[i]).padStart(4, "0")}`;
      Promise.all(numbers.map(async (i) => (await JX.load(name(i)))[index.place[i]])).then(
        (groups) => isGone || set({ key, groups }), (error) => isGone || set({ key, error }));
      return () => { isGone = true; };
    }, [key]);
    return state.key === key || state.groups ? state : {};
  }

  function Question({ group }) {
    return html`<p>${group.question}</p>${group.evidence && html`<p class="dim">${group.evidence}</p>`}
      <h3>gold</h3><pre>${group.gold || "no SQL"}</pre>
      ${group.prompt && html`<details><summary>prompt</summary><pre>${group.prompt}</pre></details>`}
      <details><summary>schema of ${group.db}</summary><${JX.Later} of="schemas" show=${(found) => (found[group.db] ? html`<pre>${found[group.db]}</pre>` : html`<p class="dim">The database's file was not at hand when this folder was written.</p>`)} /></details>`;
  }

  JX.GroupPage = ({ number, query, head, data }) => {
    const { index, low, flips } = data;
    const state = useGroups(index, number < index.size ? [number] : []);
    const heading = useRef(null);
    const key = JSON.stringify({ ...query, page: "" });
    const found = useMemo(() => JX.filter(index, low, query, flips), [key, index, low]);
    useEffect(() => { if (heading.current) heading.current.focus(); }, [number]);
    if (!(number < index.size)) return html`<h1>There is no such group</h1>`;
    if (state.error) return html`<h1>A group</h1><p class="bad">${state.error.message}</p>`;
    if (!state.groups) return html`<p class="dim">reading …</p>`;
    const [group] = state.groups, at = found.indexOf(number);
    return html`<nav class="steps" aria-label="groups">
        <a href=${hashOf("groups", query)}>list</a>
        ${at > 0 && html`<a rel="prev" href=${hashOf(`group/${JX.idOf(index, found[at - 1])}`, query)}>previous <span class="dim">(p)</span></a>`}
        ${at >= 0 && at + 1 < found.length && html`<a rel="next" href=${hashOf(`group/${JX.idOf(index, found[at + 1])}`, query)}>next <span class="dim">(n)</span></a>`}
        <a href=${hashOf("groups", { question: index.question[number] })}>all of this question</a></nav>
      <h1 tabindex="-1" ref=${heading}>${group.uid} <span class="dim">${group.phase}, step ${group.step}</span></h1>
      <p class="dim">${head.runs.length > 1 ? `${head.runs[index.run[number]].name} · ` : ""}${group.db} · ${group.hardness || "no difficulty"} · ${group.answers.length} answers${group.phase.startsWith("eval") || group.phase === "comparison" ? "" : group.chosen === null ? " · not learned from" : ""} ${marks(index, number).map(([, text]) => html`<${JX.Pill} text=${text} tone="warn" />`)}</p>
      <${Question} group=${group} />
      <h2>Answers</h2><div class="cards">${group.answers.map((one, i) => html`<${JX.Answer} key=${`${number}-${i}`} answer=${one} name=${one.from || `answer ${i + 1}`} group=${group} head=${head} />`)}</div>`;
  };

  const label = (head, one) => `${head.runs.length > 1 ? `${head.runs[one.run].name}: ` : ""}${one.phase.replace(/^eval\/?/, "") || "evaluation"}${one.step ? `, step ${one.step}` : ""}`;

  JX.ComparePage = ({ query, head, data }) => {
    const { index, texts, evaluations } = data;
    const usual = JX.usualPair(evaluations), compared = usual ? null : JX.compared(index);
    if (!usual && !Object.values(compared).some((pairs) => pairs.length)) return html`<h1>Compare</h1><p>There are no two evaluations here to compare.</p>`;
    const find = (key, or) => (usual ? evaluations.find((one) => one.key === key) || or : { key: "" });
    const a = find(query.a, usual && usual[0]), b = find(query.b, usual && usual[1]);
    const sides = compared || JX.compare(index, a, b), side = query.side || "worse";
    const choose = (name, one) => html`<label>${name}<select aria-label=${name} onChange=${(e) => { window.location.hash = hashOf("compare", { ...query, a: a.key, b: b.key, [name]: e.target.value }); }}>${evaluations.map((other) => html`<option value=${other.key} selected=${other === one}>${label(head, other)}</option>`)}</select></label>`;
    const names = { better: "better in b", worse: "worse in b", both: "right in both", neither: "right in neither" };
    const page = +query.page || 0, rows = sides[side] || [];
    const link = (more) => hashOf("compare", { ...query, a: a.key, b: b.key, ...more });
    const one = ([mine, other]) => (compared ? `#/group/${JX.idOf(index, mine)}` : `#/pair/${JX.idOf(index, mine)}/${JX.idOf(index, other)}`);
    return html`<h1>Two evaluations</h1>${usual && html`<form class="filters" onSubmit=${(e) => e.preventDefault()}>${choose("a", a)}${choose("b", b)}</form>`}
      <nav class="steps" aria-label="outcome">${Object.entries(names).map(([name, text]) => html`<a href=${link({ side: name, page: "" })} aria-current=${name === side ? "true" : null}>${text}: <b>${sides[name].length}</b></a>`)}</nav>
      <table class="list"><thead><tr><th scope="col">question</th><th scope="col">database</th><th scope="col">difficulty</th><th scope="col" class="number">a</th><th scope="col" class="number">b</th></tr></thead>
        <tbody>${rows.slice(page * PAGE, page * PAGE + PAGE).map((pair) => html`<tr key=${pair[0]}><td class="question"><a href=${one(pair)}>${texts ? texts.questions[index.question[pair[0]]] : index.uids[index.question[pair[0]]]}</a></td>
          <td>${index.words.dbs[index.db[pair[0]]]}</td><td>${index.words.hardness[index.hardness[pair[0]]]}</td>${JX.ends(index, ...pair).map((reward) => html`<td class="number">${JX.number(reward)}</td>`)}</tr>`)}</tbody></table>
      ${!rows.length && html`<p>No question is ${names[side]}.</p>`}
      ${rows.length > PAGE && html`<nav class="steps" aria-label="pages">${page > 0 && html`<a rel="prev" href=${link({ page: page - 1 || "" })}>earlier</a>`}<span>${page * PAGE + 1} to ${Math.min(rows.length, page * PAGE + PAGE)}</span>${(page + 1) * PAGE < rows.length && html`<a rel="next" href=${link({ page: page + 1 })}>later</a>`}</nav>`}`;
  };

  JX.PairPage = ({ numbers, head, data }) => {
    const { index } = data, state = useGroups(index, numbers);
    if (state.error) return html`<p class="bad">${state.error.message}</p>`;
    if (!state.groups) return html`<p class="dim">reading …</p>`;
    const [group] = state.groups;
    return html`<nav class="steps"><a href="#/compare">two evaluations</a><a href=${hashOf("groups", { question: index.question[numbers[0]] })}>all of this question</a></nav>
      <h1>${group.uid}</h1><p class="dim">${group.db} · ${group.hardness}</p><${Question} group=${group} />
      <div class="cards">${state.groups.flatMap((one, k) => one.answers.map((answer, i) => html`<${JX.Answer} key=${`${k}-${i}`} answer=${answer} group=${one} head=${head}
        name=${`${label(head, { run: index.run[numbers[k]], phase: one.phase, step: one.step })}${one.answers.length > 1 ? `, answer ${i + 1}` : ""}`} />`))}</div>`;
  };
})();
