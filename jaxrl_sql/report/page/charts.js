// Curves, drawn by Vega-Lite: one figure per chart, drawn when it scrolls into view.
"use strict";
(() => {
  const { html, useEffect, useRef, useState } = preact;
  const COLORS = ["#1f6fb2", "#d9822b", "#2f9e62", "#c0392b", "#7d5bbe", "#8c6d46", "#d16ba5", "#6b7280", "#a3a51f", "#17a2b8"];
  // A status is neither right nor wrong, so it has no green and no red.
  const STATUS = { ok: "#1f6fb2", syntax_error: "#d9822b", schema_error: "#8c6d46", no_sql: "#6b7280" };
  const JUDGING = ["#2f9e62", "#c0392b"];
  const SHORT = 8;  // steps

  // The library is large, so it is loaded after the data of the other pages.
  let library = null;
  const vega = () => (window.vegaEmbed ? Promise.resolve(window.vegaEmbed)
    : library ||= JX.ready.then(() => JX.script("page/vendor/vega.js")).then(() => window.vegaEmbed));

  function colorsOf(words) {
    const spare = COLORS.filter((one) => ![...Object.values(STATUS), ...JUDGING].includes(one));
    let next = 0;
    return words.map((word, i) => STATUS[word] || (words.some((one) => STATUS[one]) ? spare[next++ % spare.length] : COLORS[i % COLORS.length]));
  }

  function rowsOf(chart, of) {
    return chart.curves.flatMap((curve, o) => (curve[of] || (of === "means" ? curve.points : [])).map(([s, v]) => ({ s, v, o, c: curve.word })));
  }

  // The format of an axis, with as many digits as neighbouring ticks need to differ.
  function formatOf(chart, isFromZero) {
    const values = chart.curves.flatMap((curve) => [...curve.points.map((point) => point[1]), ...(curve.bounds || []).flatMap((bound) => bound.slice(1))]);
    const low = Math.min(...values, ...(isFromZero ? [0] : [])), high = Math.max(...values), size = Math.max(Math.abs(low), Math.abs(high));
    const span = high - low || size || 1;
    if (chart.percent) return `.${Math.max(0, Math.ceil(-Math.log10(span)) - 1)}%`;
    const digits = Math.min(12, Math.max(4, Math.ceil(Math.log10((size || 1) / span)) + 2));
    return size >= 1e-3 ? `,.${digits}~r` : `.${digits}~g`;
  }

  // The step axis: each step of a short run has a tick, since Vega would put ticks between two steps.
  function stepAxis(chart) {
    const steps = chart.curves.flatMap((curve) => curve.points.map((point) => point[0])).concat(chart.begins ?? []);
    const low = Math.min(...steps), high = Math.max(...steps);
    const ticks = high - low < SHORT ? { values: Array.from({ length: high - low + 1 }, (_, i) => low + i) } : { tickMinStep: 1 };
    return { ...ticks, format: ",.0f", labelFlush: false };
  }

  function legendOf(chart, words) {
    const isNeeded = words.length > 1 || chart.kind === "points" || chart.kind === "stack";
    const columns = Math.max(...words.map((word) => word.length)) > 20 ? 1 : 2;
    return isNeeded ? { orient: "top", title: null, columns, labelLimit: 300, symbolType: chart.kind === "stack" ? "square" : "stroke", symbolStrokeWidth: 2.5, symbolOpacity: 1 } : null;
  }

  function specOf(chart, isDark) {
    const words = chart.curves.map((curve) => curve.word), isFromZero = chart.percent || chart.kind === "stack";
    const x = { field: "s", type: "quantitative", title: "step", axis: stepAxis(chart), scale: { nice: false, zero: false } };
    const y = { field: "v", type: "quantitative", title: chart.axis, axis: { format: formatOf(chart, isFromZero), tickCount: 4 }, scale: { zero: isFromZero } };
    const color = { field: "c", type: "nominal", sort: words, scale: { domain: words, range: colorsOf(words) }, legend: legendOf(chart, words) };
    const encoding = { x, y, color };
    const tooltip = [{ field: "c", title: " " }, { field: "s", title: "step" }, { field: "v", title: "value", format: chart.percent ? ".1%" : ".4~g" }];
    const near = { params: [{ name: "near", select: { type: "point", on: "pointerover", nearest: true, clear: "pointerout" } }],
      mark: { type: "point", filled: true, size: 45 }, encoding: { ...encoding, tooltip, opacity: { condition: { param: "near", empty: false, value: 1 }, value: 0 } } };
    const raw = { values: rowsOf(chart, "points") }, means = { values: rowsOf(chart, "means") };
    const layers = [];
    if (chart.kind === "stack") layers.push({ data: raw, mark: { type: "area", opacity: 0.85 }, encoding: { ...encoding, y: { ...y, stack: "zero" }, order: { field: "o", type: "quantitative", sort: "descending" }, tooltip } });
    else {
      const isLong = chart.curves.some((curve) => curve.means);
      if (isLong) layers.push({ data: raw, mark: { type: "line", opacity: 0.25, strokeWidth: 1 }, encoding });
      layers.push({ data: isLong ? means : raw, mark: { type: "line", point: chart.kind === "points" || raw.values.length < 3 ? { size: 30 } : false }, encoding });
      layers.push({ data: isLong ? means : raw, ...near });
    }
    const bounds = chart.curves.flatMap((curve) => (curve.bounds || []).map(([s, low, high]) => ({ s, low, high, c: curve.word })));
    if (bounds.length) layers.unshift({ data: { values: bounds }, mark: { type: "errorbar", ticks: { size: 6 } }, encoding: { x, color, y: { ...y, field: "low" }, y2: { field: "high" } } });
    if (chart.begins !== null && chart.begins !== undefined)
      layers.push({ data: { values: [{ s: chart.begins }] }, mark: { type: "rule", strokeDash: [2, 3], color: "#9aa3ad" }, encoding: { x } });
    const ink = isDark ? "#c5ccd6" : "#4b5563", line = isDark ? "#374151" : "#e5e7eb";
    return { $schema: "https://vega.github.io/schema/vega-lite/v6.json", width: "container", height: 195, layer: layers,
      description: summary(chart), autosize: { type: "fit", contains: "padding" },
      config: { background: "transparent", view: { stroke: null }, axis: { labelColor: ink, titleColor: ink, titleFontWeight: "normal", gridColor: line, domainColor: line, tickColor: line }, legend: { labelColor: ink }, font: "system-ui, sans-serif" } };
  }

  // Text for screen readers in place of the picture.
  function summary(chart) {
    const text = (v) => (chart.percent ? `${(100 * v).toFixed(1)} %` : `${+v.toPrecision(4)}`);
    const parts = chart.curves.map((curve) => {
      const [first, last] = [curve.points[0], curve.points.at(-1)];
      return `${curve.word} from ${text(first[1])} in step ${first[0]} to ${text(last[1])} in step ${last[0]}`;
    });
    return `${chart.title}: ${parts.join("; ")}`;
  }

  function useDark() {
    const query = window.matchMedia("(prefers-color-scheme: dark)");
    const [isDark, set] = useState(query.matches);
    useEffect(() => {
      const heard = () => set(query.matches);
      query.addEventListener("change", heard);
      return () => query.removeEventListener("change", heard);
    }, []);
    return isDark;
  }

  function Figure({ chart }) {
    const place = useRef(null), drawn = useRef(null), isDark = useDark();
    const key = JSON.stringify([isDark, chart]);
    useEffect(() => {
      const element = place.current;
      let isGone = false;
      const watch = new IntersectionObserver((seen) => {
        if (!seen.some((one) => one.isIntersecting)) return;
        watch.disconnect();
        const options = { ast: true, actions: false, renderer: "svg", defaultStyle: false, tooltip: { theme: isDark ? "dark" : "custom" } };
        vega().then((draw) => draw(element, specOf(chart, isDark), options)).then((result) => {
          if (isGone) result.finalize(); else drawn.current = result;
        }, (error) => { element.textContent = `not drawn: ${error.message}`; });
      }, { rootMargin: "200px" });
      watch.observe(element);
      return () => { isGone = true; watch.disconnect(); if (drawn.current) drawn.current.finalize(); drawn.current = null; };
    }, [key]);
    return html`<figure><figcaption title=${chart.about}>${chart.title}</figcaption><div class="chart" ref=${place} role="img" aria-label=${summary(chart)}></div>${chart.note && html`<p class="dim note-small">${chart.note}</p>`}</figure>`;
  }

  // Merge the charts of two runs: each chart has the curves of both.
  function together(runs) {
    const shown = runs.filter((run) => run.charts);
    if (shown.length < 2) return shown.length ? shown[0].charts : [];
    const titles = [...new Set(shown.flatMap((run) => run.charts.map((chart) => chart.title)))];
    return titles.map((title) => {
      const found = shown.map((run) => [run, run.charts.find((chart) => chart.title === title)]).filter(([, chart]) => chart);
      const kind = found[0][1].kind === "stack" ? "exact" : found[0][1].kind;
      const curves = found.flatMap(([run, chart]) => chart.curves.map((curve) => ({ ...curve, word: `${run.name}: ${curve.word}` })));
      return { ...found[0][1], kind, curves };
    });
  }

  JX.Charts = ({ runs }) => {
    const charts = together(runs), first = charts.filter((one) => one.first), more = charts.filter((one) => !one.first);
    const [isOpen, open] = useState(false);
    if (!charts.length) return null;
    return html`<section aria-labelledby="curves"><h2 id="curves">Curves</h2>
      <div class="charts">${first.map((one) => html`<${Figure} key=${one.title} chart=${one} />`)}</div>
      ${more.length > 0 && html`<details onToggle=${(e) => open(e.target.open)}><summary>${more.length} more: ${more.map((one) => one.title.toLowerCase()).join(", ")}</summary>
        ${isOpen && html`<div class="charts">${more.map((one) => html`<${Figure} key=${one.title} chart=${one} />`)}</div>`}</details>`}
    </section>`;
  };
})();
