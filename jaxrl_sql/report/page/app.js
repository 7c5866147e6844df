// Select the page by the address after #, handle the keyboard, and reload the data of a folder that grows.
"use strict";
(() => {
  const { html, render, useEffect, useState } = preact;
  const ASK_MS = 3000;
  const KEYS = [["/", "to the search"], ["j, k", "next and previous row"], ["Enter", "open it"], ["n, p", "next and previous group or page"], ["g r, g a, g c", "run, answers, compare"], ["?", "this list"]];

  JX.timed = (work) => { const began = performance.now(), found = work(); JX.filterMs = performance.now() - began; return found; };

  function place() {
    const [path, query] = window.location.hash.replace(/^#\/?/, "").split("?");
    return { path: path.split("/"), query: Object.fromEntries(new URLSearchParams(query || "")) };
  }

  async function readIndex() {
    const index = JX.makeIndex(await JX.load("index"));
    const evaluations = JX.evaluations(index);
    return { index, evaluations, flips: JX.flips(index, evaluations), texts: null, low: null };
  }

  async function readTexts(data) {
    const texts = await JX.load("texts"), lower = (all) => all.map((one) => one.toLowerCase());
    return { ...data, texts, low: { questions: lower(texts.questions), sqls: lower(texts.sqls) } };
  }

  function useFolder() {
    const [state, set] = useState({ head: null, data: null, error: "" });
    async function read() {
      const head = await JX.load("head");
      set((old) => ({ ...old, head, error: "" }));
      JX.headMs = performance.now();
      const data = await readIndex();
      set((old) => ({ ...old, head, data: old.data ? { ...data, texts: old.data.texts, low: old.data.low } : data }));
      JX.indexMs = performance.now();
      const whole = await readTexts(data);
      set({ head, data: whole, error: "" });
      JX.textsMs = performance.now();
      JX.isReady();
    }
    useEffect(() => {
      JX.onStamp = (stamp) => {
        if (stamp === JX.stamp && JX.kept.size) return;
        JX.stamp = stamp;
        read().catch((error) => { JX.isReady(); set((old) => ({ ...old, error: error.message })); });
      };
      const ask = () => JX.script(`data/stamp.js?${Date.now()}`).catch((error) => set((old) => ({ ...old, error: error.message })));
      ask();
      const timer = setInterval(() => JX.live && ask(), ASK_MS);
      return () => clearInterval(timer);
    }, []);
    return state;
  }

  function Keys({ close }) {
    return html`<section aria-label="keys"><h2>Keys</h2><dl>${KEYS.map(([key, does]) => html`<dt><kbd>${key}</kbd></dt><dd>${does}</dd>`)}</dl><button type="button" onClick=${close}>close</button></section>`;
  }

  function useKeys(showKeys) {
    useEffect(() => {
      let isGoing = false;
      const heard = (event) => {
        const target = event.target;
        if (event.ctrlKey || event.metaKey || event.altKey) return;
        if (/^(INPUT|SELECT|TEXTAREA)$/.test(target.tagName)) { if (event.key === "Escape") target.blur(); return; }
        const to = { r: "#/", a: "#/groups", c: "#/compare" }[event.key];
        if (isGoing && to) { window.location.hash = to; isGoing = false; return; }
        isGoing = event.key === "g";
        if (event.key === "/") { const search = document.querySelector("input[type=search]"); if (search) { search.focus(); event.preventDefault(); } else window.location.hash = "#/groups"; }
        if (event.key === "?") showKeys((shown) => !shown);
        if (event.key === "n" || event.key === "p") { const link = document.querySelector(event.key === "n" ? "a[rel=next]" : "a[rel=prev]"); if (link) link.click(); }
        if (event.key === "j" || event.key === "k") {
          const links = [...document.querySelectorAll(".list tbody a")];
          const at = links.indexOf(document.activeElement);
          const next = links[Math.max(0, Math.min(links.length - 1, at + (event.key === "j" ? 1 : -1)))];
          if (next) next.focus();
        }
      };
      window.addEventListener("keydown", heard);
      return () => window.removeEventListener("keydown", heard);
    }, []);
  }

  function Page({ here, head, data }) {
    const [name, ...rest] = here.path;
    if (!name) return html`<${JX.RunPage} head=${head} />`;
    if (!data) return html`<p class="dim">reading …</p>`;
    if (name === "groups") return html`<${JX.GroupsPage} query=${here.query} head=${head} data=${data} />`;
    if (name === "group") return html`<${JX.GroupPage} number=${JX.numberOf(data.index, rest[0])} query=${here.query} head=${head} data=${data} />`;
    if (name === "compare") return html`<${JX.ComparePage} query=${here.query} head=${head} data=${data} />`;
    if (name === "pair") return html`<${JX.PairPage} numbers=${rest.map((one) => JX.numberOf(data.index, one))} head=${head} data=${data} />`;
    return html`<h1>There is no such page</h1>`;
  }

  function useHere() {
    const [here, go] = useState(place);
    useEffect(() => {
      const heard = () => go(place());
      window.addEventListener("hashchange", heard);
      return () => window.removeEventListener("hashchange", heard);
    }, []);
    return here;
  }

  function Folder() {
    const here = useHere(), { head, data, error } = useFolder(), [isHelp, showKeys] = useState(false);
    useKeys(showKeys);
    const name = here.path[0];
    const link = (to, text) => html`<a href=${`#/${to}`} aria-current=${name === to ? "page" : null}>${text}</a>`;
    return html`<a class="skip" href="#main" onClick=${(e) => { e.preventDefault(); document.getElementById("main").focus(); }}>to the content</a>
      <nav class="bar" aria-label="pages">${link("", "run")}${link("groups", "answers")}${link("compare", "compare")}
        <button type="button" aria-expanded=${isHelp} onClick=${() => showKeys(!isHelp)}>keys</button>${JX.live && html`<span class="live">● live</span>`}</nav>
      ${isHelp && html`<${Keys} close=${() => showKeys(false)} />`}
      <main id="main" tabindex="-1">${error && html`<p class="bad" role="alert">${error}</p>`}
        ${head ? html`<${Page} here=${here} head=${head} data=${data} />` : !error && html`<p class="dim">reading …</p>`}</main>`;
  }

  const inPage = document.getElementById("head");
  if (inPage) render(html`<main id="main" tabindex="-1"><${JX.RunPage} head=${JSON.parse(inPage.textContent)} /></main>`, document.getElementById("app"));
  else render(html`<${Folder} />`, document.getElementById("app"));
})();
