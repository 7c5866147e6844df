// The card of an answer: turns, reward parts, verdicts, rows next to the gold's, and token probabilities.
"use strict";
(() => {
  const { html, useEffect, useState } = preact;
  const number = (value, digits = 3) => (value === null || value === undefined ? "–" : `${+Number(value).toFixed(digits)}`);
  JX.number = number;

  JX.Pill = ({ text, tone }) => html`<span class=${`pill ${tone || ""}`}>${text}</span>`;
  // Green and red mean right and wrong; a status and other marks have neither.
  JX.Right = ({ right }) => (right === null || right === undefined ? null : html`<${JX.Pill} text=${right ? "right" : "wrong"} tone=${right ? "good" : "bad"} />`);

  // Data that are loaded when the component is shown: `of` is their name, and `show` renders them.
  JX.Later = ({ of, show }) => {
    const [state, set] = useState({});
    useEffect(() => {
      let isGone = false;
      JX.load(of).then((value) => isGone || set({ value }), (error) => isGone || set({ error }));
      return () => { isGone = true; };
    }, [of]);
    if (state.error) return html`<p class="bad">${state.error.message}</p>`;
    return state.value === undefined ? html`<p class="dim">reading …</p>` : show(state.value);
  };

  // A turn's tokens; a darker background means a lower probability.
  function Tokens({ ids, logprobs, texts }) {
    const nats = new Int16Array(JX.bytes(logprobs).buffer); // in thousandths; 32767 is none
    const shown = Array.from(new Uint32Array(JX.bytes(ids).buffer), (id, i) => ({ text: texts[id] === undefined ? `[${id}]` : texts[id], p: nats[i] === 32767 ? 1 : Math.exp(nats[i] / 1000) }));
    const least = [...shown].sort((a, b) => a.p - b.p).slice(0, 6);
    return html`<pre class="tokens">${shown.map((one) => html`<span title=${`p = ${one.p.toFixed(3)}`} style=${{ background: `rgba(217,130,43,${(0.75 * (1 - one.p)).toFixed(3)})` }}>${one.text}</span>`)}</pre>
      <p class="dim">least likely: ${least.map((one, i) => html`${i ? ", " : ""}<code>${one.text.trim() || JSON.stringify(one.text)}</code> ${one.p.toFixed(3)}`)}</p>`;
  }

  function Turn({ turn, tokens, isAlone }) {
    const [role, text, ids, logprobs] = turn;
    return html`<div class=${`turn ${role}`}>
      ${!(isAlone && role === "assistant") && html`<div class="dim">${role}</div>`}
      ${tokens && ids ? html`<${Tokens} ids=${ids} logprobs=${logprobs} texts=${tokens} />` : html`<pre>${text}</pre>`}
    </div>`;
  }

  function cell(value) {
    return value === null || value === undefined ? html`<span class="dim">NULL</span>` : String(value);
  }

  // A result's rows in pairs with the gold's; cells that differ are marked.
  function Rows({ results }) {
    if (!results) return null;
    const { prediction, gold, pairs } = results;
    const error = (side, name) => (side === null || side === undefined ? `${name}: nothing was run` : side.error ? `${name}: ${side.error}` : "");
    if (!pairs || error(prediction, "prediction") || error(gold, "gold"))
      return html`<p>${error(prediction, "prediction")} ${error(gold, "gold")}</p>
        ${gold && !gold.error && html`<${Table} of=${gold} name="gold" />`}${prediction && !prediction.error && html`<${Table} of=${prediction} name="prediction" />`}`;
    const wide = Math.max(1, prediction.columns.length), goldWide = Math.max(1, gold.columns.length);
    const cells = (row, columns, marks, first) => (row
      ? row.map((value, i) => html`<td class=${i === 0 && first ? "gap" : ""}>${marks === true || marks.includes(i) ? html`<mark>${cell(value)}</mark>` : cell(value)}</td>`)
      : html`<td class=${`dim ${first ? "gap" : ""}`} colspan=${columns}>no row</td>`);
    return html`<div class="scroll" tabindex="0" role="region" aria-label="rows of the prediction beside the gold's"><table class="rows">
      <caption>${prediction.row_count} rows, gold ${gold.row_count}${results.equal !== undefined ? `; ${results.equal} in both` : ""}${pairs.length < Math.max(prediction.row_count, gold.row_count) ? `; ${pairs.length} are shown` : ""}</caption>
      <thead><tr><th colspan=${wide} scope="colgroup">prediction</th><th class="gap" colspan=${goldWide} scope="colgroup">gold</th></tr>
      <tr>${prediction.columns.map((name) => html`<th scope="col">${name}</th>`)}${!prediction.columns.length && html`<th></th>`}${gold.columns.map((name, i) => html`<th scope="col" class=${i ? "" : "gap"}>${name}</th>`)}</tr></thead>
      <tbody>${pairs.map(([mine, theirs, marks]) => html`<tr>${cells(mine, wide, theirs ? marks : true, false)}${cells(theirs, goldWide, mine ? marks : true, true)}</tr>`)}</tbody>
    </table></div>`;
  }

  function Table({ of, name }) {
    return html`<div class="scroll" tabindex="0" role="region" aria-label=${`rows of the ${name}`}><table class="rows"><caption>${name}: ${of.row_count} rows</caption>
      <thead><tr>${of.columns.map((one) => html`<th scope="col">${one}</th>`)}</tr></thead>
      <tbody>${of.rows.map((row) => html`<tr>${row.map((value) => html`<td>${cell(value)}</td>`)}</tr>`)}</tbody></table></div>`;
  }

  function Verdict({ verdict, head, rule }) {
    if (!verdict) return html`<p class="dim">not judged by other rules here</p>`;
    if (verdict.error) return html`<p class="dim">${verdict.error}</p>`;
    const scores = Object.entries(verdict.scores || {}), reasons = verdict.reasons || [];
    return html`<h4 class="hidden">verdict by rule</h4><p>${scores.map(([name, value]) => html`<${JX.Pill} tone=${value >= 1 ? "good" : "bad"}
        text=${`${value >= 1 ? "✓" : "✗"} ${name}${name === rule ? " (own)" : ""}${value > 0 && value < 1 ? ` ${number(value, 2)}` : ""}`} />`)}
        ${verdict.constant && html`<${JX.Pill} tone="warn" text="reads no table" />`}</p>
      ${reasons.length > 0 && html`<ul>${reasons.map((one) => html`<li>${(head.reasons && head.reasons[one]) || one}</li>`)}</ul>`}
      <${Rows} results=${verdict.results} />`;
  }

  // Finish reasons; others are shown as the endpoint reported them.
  const ENDED = { stop: "", length: "cut off", turns: "out of turns", demonstration: "demonstration: not sampled" };

  JX.Answer = ({ answer, name, group, head }) => {
    const [isToken, showTokens] = useState(false);
    const hasTokens = answer.turns.some((turn) => turn.length > 2);
    const parts = Object.entries(answer.parts || {});
    const ending = answer.finish_reason in ENDED ? ENDED[answer.finish_reason] : answer.finish_reason;
    const turns = (tokens) => answer.turns.map((turn) => html`<${Turn} turn=${turn} tokens=${tokens} isAlone=${answer.turns.length === 1} />`);
    return html`<article aria-label=${name}><header><h3>${name}</h3>
        <${JX.Right} right=${answer.right} /><${JX.Pill} text=${answer.status} />
        <span>reward <b>${number(answer.reward)}</b></span>
        ${answer.advantage !== undefined && html`<span>advantage <b>${number(answer.advantage)}</b></span>`}
        ${answer.weight === 0 && html`<span class="warn">not learned from</span>`}
        ${ending && html`<${JX.Pill} text=${ending} tone=${answer.finish_reason === "demonstration" ? "" : "warn"} />`}
        ${answer.stop && html`<span class="dim">stopped by ${answer.stop}</span>`}
        ${answer.gold_status && answer.gold_status !== "ok" && html`<${JX.Pill} text=${`gold: ${answer.gold_status}`} tone="warn" />`}
      </header>
      ${parts.length > 0 && html`<p class="dim">${parts.map(([part, value], i) => `${i ? " · " : ""}${part} ${number(value)}`)}</p>`}
      ${answer.error && html`<p class="bad">${answer.error}</p>`}
      <pre aria-label="SQL">${answer.sql || "no SQL"}</pre>
      <${Verdict} verdict=${answer.verdict} head=${head} rule=${group.rule} />
      ${answer.turns.length > 0 && html`<details><summary>the whole answer${answer.turns.length > 1 ? `, ${answer.turns.length} turns` : ""}</summary>
        ${hasTokens && html`<button type="button" aria-pressed=${isToken} onClick=${() => showTokens(!isToken)}>probabilities</button>`}
        ${isToken ? html`<${JX.Later} of="tokens" show=${turns} />` : turns(null)}</details>`}
    </article>`;
  };
})();
