"""The page: one self-contained HTML file with a run's numbers, curves and samples, by the template `page.html`."""

from __future__ import annotations

import statistics
from pathlib import Path
from typing import Any

import jinja2

from jaxrl_sql.report.load import Run, first_grpo_step, load_run, series, split_results
from jaxrl_sql.report.plots import charts, draw

SAMPLES_SHOWN = 60


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
    loader = jinja2.FileSystemLoader(Path(__file__).parent)
    pages = jinja2.Environment(loader=loader, autoescape=True, trim_blocks=True, keep_trailing_newline=True)
    ends = ("before GRPO", "after") if first_grpo_step(run) is not None else ("first", "last")
    return pages.get_template("page.html").render(
        run=run,
        title=run.folder.resolve().name,
        last=max((row["step"] for row in run.metrics), default=0),
        words=(*ends, "change", "questions", "SQL that runs"),
        accuracies=_accuracies(run),
        facts=_facts(run),
        curves=[(chart.title, draw(run, chart)) for chart in charts(run)],
        samples=list(reversed(run.samples))[:SAMPLES_SHOWN],
    )


def _accuracies(run: Run) -> list[tuple[Any, ...]]:
    """Return (kind, name, before, after, questions, share of valid SQL or None) of each split and of its grades."""
    rows: list[tuple[Any, ...]] = []
    for one in split_results(run):
        rows.append(("", one.split, one.before, one.after, one.count, one.valid))
        rows += [("grade", f"– {grade}", *numbers, None) for grade, numbers in one.grades.items()]
    return rows


def _facts(run: Run) -> list[tuple[str, str]]:
    """Return what else one asks first: rewards at both ends, and where the time went."""
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
    return facts
