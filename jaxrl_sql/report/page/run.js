// The first page: description of the run, accuracies, health, changed questions, and curves.
"use strict";
(() => {
  const { html } = preact;
  const percent = (x) => `${(100 * x).toFixed(1)} %`;

  function End({ end, count }) {
    if (!end) return html`<td class="number"></td>`;
    const title = `${Math.round(end.mean * count)} of ${count}; 95 % interval ${percent(end.low)} to ${percent(end.high)}`;
    return html`<td class="number" title=${title}>${percent(end.mean)}<br /><span class="dim">${(100 * end.low).toFixed(0)}–${(100 * end.high).toFixed(0)}</span></td>`;
  }

  function Change({ before, after, difference }) {
    if (!before || !after) return html`<td></td>`;
    const points = 100 * (after.mean - before.mean);
    const tone = points > 0 ? "good" : points < 0 ? "bad" : "dim";
    const sign = (x) => `${x > 0 ? "+" : ""}${x.toFixed(0)}`;
    return html`<td class=${`number ${tone}`}>${points > 0 ? "+" : ""}${points.toFixed(1)}${difference && html`<br /><span class="dim">${sign(100 * difference.low)} to ${sign(100 * difference.high)}</span>`}</td>`;
  }

  function Accuracies({ run }) {
    if (!run.accuracies || !run.accuracies.length) return null;
    const line = (one, isGrade) => html`<tr class=${isGrade ? "grade" : ""}><th scope="row">${isGrade ? "– " : ""}${one.name}</th>
      <${End} end=${one.before} count=${one.count} /><${End} end=${one.after} count=${one.count} /><${Change} ...${one} />
      <td class="number">${one.count || ""}</td>${[one.valid, one.truncated].map((x) => html`<td class="number">${x === null || x === undefined ? "" : percent(x)}</td>`)}</tr>`;
    return html`<h3>Greedy execution accuracy</h3><div class="scroll"><table><caption class="hidden">accuracy by split, with 95 % intervals</caption>
      <thead><tr><th scope="col">split</th><th scope="col" class="number">${run.ends[0]}</th><th scope="col" class="number">${run.ends[1]}</th>
        <th scope="col" class="number">points</th><th scope="col" class="number">of</th><th scope="col" class="number">SQL runs</th><th scope="col" class="number">cut off</th></tr></thead>
      <tbody>${run.accuracies.map((one) => [line(one, false), ...one.grades.map((grade) => line(grade, true))])}</tbody></table></div>
      <p class="dim">Below each share and difference its 95 % interval: over databases for evaluations whose answers are kept, else over questions.</p>`;
  }

  function Rules({ run }) {
    if (!run.rules || !run.rules.length) return null;
    const hasSets = run.rules.some((one) => one.set);
    return html`<h3>By every rule</h3><div class="scroll"><table><thead><tr>${hasSets && html`<th scope="col">set</th>`}<th scope="col">rule</th><th scope="col" class="number">share</th><th scope="col" class="number">95 % interval</th></tr></thead>
      <tbody>${run.rules.map((one) => html`<tr>${hasSets && html`<td>${one.set}</td>`}<th scope="row">${one.rule}</th><td class="number">${percent(one.mean)}</td><td class="number">${percent(one.low)} – ${percent(one.high)}</td></tr>`)}</tbody></table></div>`;
  }

  function Changes({ run, head }) {
    return (run.changes || []).map((one) => html`<details><summary>${one.phase.replace("eval/", "")}: ${one.better} better, ${one.worse} worse of ${one.count}, from step ${one.steps[0]} to ${one.steps[1]}</summary>
      ${["better", "worse"].map((side) => one.shown[side].length > 0 && html`<h4>${side}</h4><ul class="plain">${one.shown[side].map((q) => html`<li><span class="dim">${q.db}</span> ${q.question}</li>`)}</ul>
        ${one[side] > one.shown[side].length && html`<p class="dim">and ${one[side] - one.shown[side].length} more</p>`}`)}
      ${!head.alone && html`<a href=${`#/compare?a=${encodeURIComponent(`${run.number}|${one.phase}|${one.steps[0]}`)}&b=${encodeURIComponent(`${run.number}|${one.phase}|${one.steps[1]}`)}`}>question by question</a>`}</details>`);
  }

  function Samples({ run }) {
    if (!run.samples || !run.samples.length) return null;
    return html`<section><h2>Samples</h2><p class="dim">${run.samples.length} of ${run.kept}, newest first, of samples.jsonl</p>
      ${run.samples.map((one) => html`<details><summary>step ${one.step} · ${typeof one.right === "boolean" ? (one.right ? "right" : "wrong") : one.status}${typeof one.reward === "number" ? ` · ${JX.number(one.reward)}` : ""} · ${one.question || ""}</summary>
        <pre>${one.sql || "no SQL"}</pre>${one.gold && html`<div class="dim">gold</div><pre>${one.gold}</pre>`}</details>`)}</section>`;
  }

  function Lines({ lines }) {
    return html`<dl>${lines.map(([name, value]) => html`<dt>${name}</dt><dd>${value}</dd>`)}</dl>`;
  }

  function Run({ run, head, several }) {
    return html`<section aria-label=${run.name}>
      ${several && html`<h2>${run.name}</h2>`}
      ${run.sentence && html`<p class="lead">${run.sentence}</p>`}
      ${(run.stop || []).map(([text, command]) => html`<p class="line">${text}${command && html`<code>${command}</code>`}</p>`)}
      <p class="dim line">${summary(run)}</p>
      <div class=${several ? "" : "two result"}><div><${Accuracies} run=${run} /><${Rules} run=${run} /></div><div>
      ${(run.health || []).length > 0 && html`<h3>Health, last tenth of the steps</h3><ul class="plain">${run.health.map(([tone, text]) => html`<li class=${tone}>${tone === "good" ? "✓" : "!"} ${text}</li>`)}</ul>`}
      ${(run.changes || []).length > 0 && html`<h3>What changed between the last two evaluations</h3><${Changes} run=${run} head=${head} />`}
      </div></div></section>`;
  }

  function Details({ run, several }) {
    return html`<section aria-label=${`what ran: ${run.name}`}>${several && html`<h2>${run.name}</h2>`}
      <div class="two">${run.ran && run.ran.length > 0 && html`<div><h3>What ran</h3><${Lines} lines=${run.ran} /></div>`}
      ${run.numbers && run.numbers.length > 0 && html`<div><h3>Key numbers</h3><${Lines} lines=${run.numbers} /></div>`}</div>
      ${run.config && html`<details><summary>config.yaml</summary><pre>${run.config}</pre></details>`}
    </section>`;
  }

  // The description of a run as one line.
  function summary(run) {
    const ran = Object.fromEntries(run.ran || []);
    const facts = ["recipe", "model", "data", "started", "duration", "machine"].map((name) => ran[name]).filter(Boolean);
    if (ran.seed !== undefined) facts.splice(3, 0, `seed ${ran.seed}`);
    const counts = [run.kind, run.steps ? `${run.steps} steps` : "", run.answers !== undefined ? `${run.answers.toLocaleString("en")} answers kept` : ""];
    return [...counts.filter(Boolean), ...facts].join(" · ");
  }

  JX.RunPage = ({ head }) => {
    const several = head.runs.length > 1;
    return html`<h1>${head.title}</h1>
      ${(head.notes || []).map((note) => html`<p class="note">${note}</p>`)}
      <div class=${several ? "two" : ""}>${head.runs.map((run, i) => html`<${Run} run=${{ ...run, number: i }} head=${head} several=${several} />`)}</div>
      ${head.alone && head.runs.map((run) => html`<p class="dim">Every answer, from the folder where the run was started: <code>${run.view}</code></p>`)}
      <${JX.Charts} runs=${head.runs} />
      <div class=${several ? "two" : ""}>${head.runs.map((run) => html`<${Details} run=${run} several=${several} />`)}</div>
      ${head.alone && head.runs.map((run) => html`<${Samples} run=${run} />`)}`;
  };
})();
