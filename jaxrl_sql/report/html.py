"""The page: one self-contained HTML file with a run's numbers, curves and samples."""

from __future__ import annotations

import html
import math
import statistics
from collections.abc import Iterable, Sequence
from pathlib import Path
from typing import Any

from jaxrl_sql.report.load import Row, Run, first_grpo_step, load_run, series, split_results
from jaxrl_sql.report.plots import charts, draw

SAMPLES_SHOWN = 60
CSS = """
:root { color-scheme: light; --ink: #1f2937; --dim: #6b7280; --line: #e5e7eb; --good: #1d7f4c; --bad: #b03a2e; }
body { font: 15px/1.5 system-ui, sans-serif; color: var(--ink); max-width: 1180px; margin: 2rem auto; padding: 0 1rem; }
h1 { font-size: 1.6rem; margin-bottom: 0; } h2 { font-size: 1.15rem; margin-top: 2.2rem; } .dim { color: var(--dim); }
table { border-collapse: collapse; } th { font-weight: 600; color: var(--dim); text-align: left; }
th, td { padding: .35rem .9rem .35rem 0; border-bottom: 1px solid var(--line); vertical-align: top; }
td.number, th.number { text-align: right; font-variant-numeric: tabular-nums; } tr.grade td { color: var(--dim); }
.good { color: var(--good); } .bad { color: var(--bad); } code, pre { font: 12.5px/1.45 ui-monospace, monospace; }
td code { white-space: pre-wrap; overflow-wrap: anywhere; } pre { background: #f9fafb; padding: 1rem; overflow: auto; }
.charts { display: grid; grid-template-columns: repeat(auto-fill, minmax(350px, 1fr)); gap: 1.2rem; }
figure { margin: 0; border: 1px solid var(--line); border-radius: 8px; padding: .7rem; }
figure svg { width: 100%; height: auto; } figcaption { font-weight: 600; font-size: .95rem; }
.samples { width: 100%; font-size: .9rem; } summary { cursor: pointer; color: var(--dim); }
"""


def write_report(run_dir: str | Path) -> Path:
    """Write `report.html` of a run folder and return its path; raises InputError when there is no run."""
    run = load_run(run_dir)
    path = run.folder / "report.html"
    scratch = path.with_name("report.html.tmp")
    scratch.write_text(render(run), encoding="utf-8")
    scratch.replace(path)
    return path


def render(run: Run) -> str:
    """Return the page of a run."""
    title = html.escape(run.folder.resolve().name)
    sections = [_head(run, title), _accuracy(run), _key_numbers(run), _curves(run), _samples(run), _config(run)]
    return (
        f'<!DOCTYPE html>\n<html lang="en">\n<head>\n<meta charset="utf-8">\n<title>{title}</title>\n'
        f'<meta name="viewport" content="width=device-width">\n<style>{CSS}</style>\n</head>\n<body>\n'
        + "\n".join(section for section in sections if section)
        + "\n</body>\n</html>\n"
    )


def _head(run: Run, title: str) -> str:
    last = max((row["step"] for row in run.metrics), default=0)
    words = [f"{last} steps"]
    if run.skipped:
        words.append(f"unreadable lines left out: {run.skipped}")
    return f'<h1>{title}</h1>\n<p class="dim">{" · ".join(words)}</p>'


def _accuracy(run: Run) -> str:
    """Return the table of accuracies before and after, by split and grade."""
    results = split_results(run)
    if not results:
        return ""
    words = ("before GRPO", "after") if first_grpo_step(run) is not None else ("first", "last")
    rows = []
    for result in results:
        valid = "" if result.valid is None else f"{100 * result.valid:.1f} %"
        rows.append(_accuracy_row("", result.split, result.before, result.after, result.count, valid))
        rows += [_accuracy_row("grade", f"– {grade}", *numbers, "") for grade, numbers in result.grades.items()]
    head = _cells("th", ["split", words[0], words[1], "change", "questions", "SQL that runs"], numbers_from=1)
    return f"<h2>Greedy execution accuracy</h2>\n<table>\n<tr>{head}</tr>\n" + "\n".join(rows) + "\n</table>"


def _accuracy_row(kind: str, name: str, before: float, after: float, count: int, valid: str) -> str:
    change = 100 * (after - before)
    tone = "good" if change > 0 else "bad" if change < 0 else "dim"
    cells = [f"<td>{html.escape(name)}</td>"]
    cells += [_accuracy_cell(value, count) for value in (before, after)]
    points = "" if math.isnan(change) else f"{change:+.1f} points"
    cells += [f'<td class="number {tone}">{points}</td>']
    cells += [f'<td class="number">{count or ""}</td>', f'<td class="number">{valid}</td>']
    return f'<tr class="{kind}">{"".join(cells)}</tr>'


def _accuracy_cell(share: float, count: int) -> str:
    if math.isnan(share):
        return '<td class="number"></td>'
    counts = f' <span class="dim">({round(share * count)})</span>' if count else ""
    return f'<td class="number">{100 * share:.1f} %{counts}</td>'


def _key_numbers(run: Run) -> str:
    """Return a table of what else one asks first: rewards at both ends, and where the time went."""
    facts: list[tuple[str, str]] = []
    rewards = [value for _, value in series(run, "reward/mean")]
    if rewards:
        tenth = max(1, len(rewards) // 10)
        ends = f"{statistics.fmean(rewards[:tenth]):.3f} → {statistics.fmean(rewards[-tenth:]):.3f}"
        facts.append((f"mean reward, first and last {tenth} steps", ends))
    losses = [value for _, value in series(run, "sft/loss")]
    if losses:
        facts.append(("SFT loss, first and last", f"{losses[0]:.3f} → {losses[-1]:.3f}"))
    seconds = sum(value for _, value in series(run, "time/step", "grpo"))
    if seconds:
        waited = sum(value for _, value in series(run, "time/sql_wait", "grpo"))
        facts.append(("GRPO steps, all together", f"{seconds / 60:.1f} min"))
        facts.append(("waiting for SQL", f"{100 * waited / seconds:.2f} % of their time"))
    for name, word in (("speed/tokens_per_s", "tokens a second, median"), ("speed/sql_per_s", "SQL a second, median")):
        values = [value for _, value in series(run, name, "grpo")]
        if values:
            facts.append((word, f"{statistics.median(values):,.0f}"))
    if not facts:
        return ""
    rows = "\n".join(f'<tr><td>{word}</td><td class="number">{number}</td></tr>' for word, number in facts)
    return f"<h2>Key numbers</h2>\n<table>\n{rows}\n</table>"


def _curves(run: Run) -> str:
    drawn = [
        f"<figure><figcaption>{html.escape(chart.title)}</figcaption>\n{draw(run, chart)}</figure>"
        for chart in charts(run)
    ]
    return '<h2>Curves</h2>\n<div class="charts">\n' + "\n".join(drawn) + "\n</div>" if drawn else ""


def _samples(run: Run) -> str:
    """Return the newest samples: question, SQL, status and reward."""
    if not run.samples:
        return ""
    newest = list(reversed(run.samples))[:SAMPLES_SHOWN]
    head = _cells("th", ["step", "question", "SQL", "status", "reward"], numbers_from=4)
    rows = "\n".join(_sample_row(sample) for sample in newest)
    count = f"{len(newest)} of {len(run.samples)}, newest first; all are in samples.jsonl"
    return f'<h2>Samples</h2>\n<p class="dim">{count}</p>\n<table class="samples">\n<tr>{head}</tr>\n{rows}\n</table>'


def _sample_row(sample: Row) -> str:
    status = str(sample.get("status", ""))
    gold = sample.get("gold") or sample.get("gold_sql")
    folded = f"<details><summary>gold</summary>{_code(gold)}</details>" if gold else ""
    phase = f'<br><span class="dim">{html.escape(str(sample["phase"]))}</span>' if "phase" in sample else ""
    return (
        f"<tr><td>{sample['step']}{phase}</td><td>{html.escape(str(sample.get('question', '')))}</td>"
        f"<td>{_code(sample.get('sql'))}{folded}</td>"
        f'<td class="{"good" if status == "ok" else "bad"}">{html.escape(status)}</td>'
        f'<td class="number">{_number(sample.get("reward"))}</td></tr>'
    )


def _config(run: Run) -> str:
    if not run.config:
        return ""
    text = html.escape(run.config)
    return f"<h2>Configuration</h2>\n<details><summary>config.yaml</summary>\n<pre>{text}</pre></details>"


def _code(sql: Any) -> str:
    return f"<code>{html.escape(str(sql))}</code>" if sql else '<span class="dim">none</span>'


def _number(value: Any) -> str:
    return f"{value:.3g}" if isinstance(value, int | float) else ""


def _cells(tag: str, words: Sequence[str] | Iterable[str], numbers_from: int) -> str:
    kinds = (' class="number"' if i >= numbers_from else "" for i, _ in enumerate(words))
    return "".join(f"<{tag}{kind}>{html.escape(word)}</{tag}>" for kind, word in zip(kinds, words, strict=True))
