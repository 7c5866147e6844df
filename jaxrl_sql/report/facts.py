"""The facts on a report's page: description of the run, accuracies, key numbers and health."""

from __future__ import annotations

import statistics
from collections.abc import Sequence
from urllib.parse import urlsplit

from jaxrl_sql.report.charts import find_compiled_steps
from jaxrl_sql.report.intervals import Evaluations, difference_of, score_of, share_of
from jaxrl_sql.report.load import RunFiles, first_grpo_step, metric_names, series, split_results
from jaxrl_sql.report.outcome import duration_of, seconds_of, sessions_of, time_of
from jaxrl_sql.runtime.progress import duration, quantity
from jaxrl_sql.text2sql.env.address import public_name
from jaxrl_sql.types import Fields, Json, Record

MAX_CHANGED = 40
"""Largest number of listed questions that became right, and of those that became wrong."""
# Limits on means over the last tenth of the steps, beyond which a fact is marked bad.
_MAX_ZERO_VARIANCE, _MAX_TRUNCATED, _MIN_VALID, _MIN_ENTROPY = 0.6, 0.2, 0.5, 0.02

Line = tuple[str, str]
"""A label and a text."""


def describe_run(run: RunFiles) -> list[Line]:
    """Return the description of a run: recipe, model and its size, data, seed, dates, duration, machine, versions."""
    sessions = sessions_of(run)
    last = sessions[-1] if sessions else {}
    model = run.setting("model.checkpoint") or "new model"
    size, lora = run.about.get("parameters"), run.setting("model.lora.rank", 0)
    adapters = f", adapters of rank {lora}" if lora else ""
    data = run.setting("data.dir") or run.setting("data.source")
    versions = last.get("versions", {})
    lines = [
        ("recipe", run.setting("recipe")),
        ("model", f"{model}{f', {_amount(size)} parameters' if size else ''}{adapters}" if run.settings else None),
        ("data", f"{data}, {run.setting('data.train')}" if data else None),
        ("database", public_name(str(run.setting("data.database") or ""))),
        ("evaluated on", _join(run.setting("data.evals"))),
        ("seed", run.setting("seed")),
        ("started", _date(sessions[0].get("began")) if sessions else None),
        ("ended", _date(last.get("ended"))),
        ("duration", _duration(sessions)),
        ("machine", last.get("machine")),
        ("versions", ", ".join(f"{name} {number}" for name, number in versions.items())),
        ("commit", last.get("commit")),
    ]
    return [(name, str(value)) for name, value in lines if value not in (None, "")]


def describe_evaluation(settings: Fields) -> list[Line]:
    """Return the description of an evaluation from its configuration: recipe, model or predictions, data."""
    section = settings.get("evaluate")
    section = section if isinstance(section, dict) else {}
    model, data = settings.get("model"), settings.get("data")
    checkpoint = model.get("checkpoint") if isinstance(model, dict) else None
    server = urlsplit(str(section.get("base_url") or "")).netloc.rpartition("@")[2]
    is_model = bool(checkpoint or server)
    lines = [
        ("recipe", settings.get("recipe") if is_model else None),
        ("model", f"{section.get('model')} at {server}" if server else checkpoint),
        ("predictions", _join(section.get("predictions"))),
        ("data", _join(section.get("data"))),
        ("database", public_name(str(data.get("database") or "")) if isinstance(data, dict) else None),
        ("seed", settings.get("seed") if is_model else None),
    ]
    return [(name, str(value)) for name, value in lines if value not in (None, "")]


def key_numbers(run: RunFiles) -> list[Line]:
    """Return rewards and losses at the start and the end of a run, and its use of time.

    Medians omit steps that compiled.
    """
    facts: list[Line] = []
    rewards = [value for _, value in series(run, "reward/mean")]
    if rewards:
        tenth = max(1, len(rewards) // 10)
        first_to_last = f"{statistics.fmean(rewards[:tenth]):.3f} → {statistics.fmean(rewards[-tenth:]):.3f}"
        steps = "step" if tenth == 1 else f"{tenth} steps"
        facts.append((f"mean reward, first and last {steps}", first_to_last))
    losses = [value for _, value in series(run, "sft/loss")]
    if losses:
        facts.append(("SFT loss, first and last", f"{losses[0]:.3f} → {losses[-1]:.3f}"))
    seconds = sum(value for _, value in series(run, "time/step", "grpo"))
    if seconds:
        waiting_s = sum(value for _, value in series(run, "time/sql_wait", "grpo"))
        facts.append(("GRPO steps in total", duration(seconds)))
        if compiled := sum(value for _, value in series(run, "time/compile", "grpo")):
            facts.append(("of that compiling", duration(compiled)))
        facts.append(("waiting for SQL", f"{100 * waiting_s / seconds:.2f} % of their time"))
    if programs := count_programs(run):
        facts.append(("compiled programs", programs))
    excluded = find_compiled_steps(run)
    labels = (("time/step", "seconds per step, median"), ("speed/tokens_per_s", "tokens per second, median"))
    for name, label in (*labels, ("speed/sql_per_s", "SQL per second, median")):
        points = series(run, name, "grpo")
        values = [value for step, value in points if step not in excluded] or [value for _, value in points]
        if values:
            median = statistics.median(values)
            facts.append((label, f"{median:,.2f}" if median < 10 else f"{median:,.0f}"))
    return facts


def count_programs(run: RunFiles, max_names: int = 5) -> str:
    """Return the number of compiled programs with the most frequent names, such as `9: 6 prefill_chunk, 3 update`."""
    prefix = "time/programs/"
    counts = {name.removeprefix(prefix): sum(n for _, n in series(run, name)) for name in metric_names(run, prefix)}
    most = sorted(counts, key=lambda name: counts[name], reverse=True)[:max_names]
    return f"{sum(counts.values()):.0f}: {', '.join(f'{counts[name]:.0f} {name}' for name in most)}" if counts else ""


def accuracies(run: RunFiles, evaluations: Evaluations) -> list[Record]:
    """Return a record per split with its accuracy before and after GRPO and their 95 % intervals.

    `before` and `after` are as `share_of` returns them, None for a column without a value. `difference` is their paired
    difference, `steps` are those of the two evaluations, and `grades` has the same by difficulty. If the answers are in
    `evaluations`, intervals are over databases, else over questions as if they were independent.
    """
    rows: list[Record] = []
    for split in split_results(run):
        groups_by_step = evaluations.get(f"eval/{split.split}", {})
        groups_before, groups_after = (groups_by_step.get(step, ()) for step in split.steps)
        is_visible = _visible_columns(run, split.steps)
        before, after = (
            share_of(mean, split.count, groups) if is_shown else None
            for mean, groups, is_shown in zip(
                (split.before, split.after), (groups_before, groups_after), is_visible, strict=True
            )
        )
        comparisons = {
            "steps": list(split.steps),
            "difference": difference_of(groups_before, groups_after, split.count) if all(is_visible) else None,
        }
        shares = {"valid": split.valid, "truncated": split.truncated, **comparisons}
        row = {"name": split.split, "before": before, "after": after, "count": split.count, **shares}
        by_difficulty = [
            {
                "name": difficulty,
                **{
                    side: share_of(mean, count, ()) if is_shown else None
                    for side, mean, is_shown in zip(("before", "after"), means, is_visible, strict=True)
                },
                "count": count,
            }
            for difficulty, (*means, count) in split.by_difficulty.items()
        ]
        rows.append({**row, "grades": by_difficulty})
    return rows


def _visible_columns(run: RunFiles, steps: tuple[int, int]) -> tuple[bool, bool]:
    """Return whether the columns "before" and "after" have a value: a single evaluation belongs to one of them."""
    if steps[0] != steps[1]:
        return True, True
    grpo_start = first_grpo_step(run)
    is_before = grpo_start is not None and steps[0] < grpo_start
    return is_before, not is_before


def changes(evaluations: Evaluations) -> list[Record]:
    """Return a record per split with the questions that became right or wrong between its last two evaluations.

    `better` and `worse` are their numbers among the `count` questions of both evaluations; `shown` lists some.
    """
    changed = []
    for phase, steps in evaluations.items():
        if len(steps) < 2:
            continue
        (first_step, before), (last_step, after) = sorted(steps.items())[-2:]
        scores_before = {group["uid"]: score_of(group) for group in before}
        common = [group for group in after if group["uid"] in scores_before]
        better = [group for group in common if score_of(group) > scores_before[group["uid"]]]
        worse = [group for group in common if score_of(group) < scores_before[group["uid"]]]
        changed.append(
            {
                "phase": phase,
                "steps": [first_step, last_step],
                "count": len(common),
                "better": len(better),
                "worse": len(worse),
                "shown": {
                    name: [{"uid": group["uid"], "db": group["db"], "question": group["question"]} for group in rows]
                    for name, rows in (("better", better[:MAX_CHANGED]), ("worse", worse[:MAX_CHANGED]))
                },
            }
        )
    return changed


def health(run: RunFiles) -> list[tuple[str, str]]:
    """Return facts about the run's health in its last tenth of steps, as ("good" or "bad", sentence)."""
    steps = [row["step"] for row in run.metrics if row.get("phase") in ("grpo", "grpo2")]
    notes: list[tuple[str, str]] = []
    if run.skipped:
        notes.append(("bad", f"{quantity(run.skipped, 'unreadable lines', 'were')} skipped"))
    broken = [row["step"] for row in run.metrics if "reward/mean" in row and row.get("optim/grad_norm", 0) is None]
    if broken:
        notes.append(
            ("bad", f"the gradient was not finite in {quantity(len(broken), 'steps')}, first in step {broken[0]}")
        )
    if not steps:
        return notes
    recent = steps[-max(1, len(steps) // 10) :]
    span = f"mean of the last {len(recent)} steps" if len(recent) > 1 else "the last step"

    def recent_mean(name: str) -> float | None:
        values = [value for step, value in series(run, name) if step >= recent[0]]
        return statistics.fmean(values) if values else None

    # Metric, text, bound, and 1 for an upper bound or -1 for a lower bound.
    shares = (
        (
            "reward/zero_variance",
            "of the groups have no signal: their answers have equal rewards",
            _MAX_ZERO_VARIANCE,
            1,
        ),
        ("length/truncated", "of the answers are truncated at sampling.max_new_tokens", _MAX_TRUNCATED, 1),
        ("status/ok", "of the answers have SQL that runs", _MIN_VALID, -1),
    )
    for name, text, bound, sign in shares:
        value = recent_mean(name)
        if value is not None:
            is_bad = sign * value > sign * bound
            side = "at most" if sign > 0 else "at least"
            limit = f"({span}; bound: {side} {100 * bound:.0f} %)"
            notes.append(("bad" if is_bad else "good", f"{100 * value:.0f} % {text} {limit}"))
    entropy = recent_mean("policy/entropy")
    if entropy is not None:
        text = f"the entropy is {entropy:.3f} nats per token (bound: at least {_MIN_ENTROPY:g})"
        notes.append(("bad" if entropy < _MIN_ENTROPY else "good", text))
    return notes


def problems(run: RunFiles) -> list[str]:
    """Return the bad findings of `health`."""
    return [sentence for tone, sentence in health(run) if tone == "bad"]


def first_and_last(run: RunFiles) -> tuple[str, str]:
    """Return the headings of the two columns of accuracies."""
    return ("before GRPO", "after") if first_grpo_step(run) is not None else ("first", "last")


def _join(value: Json) -> Json:
    return ", ".join(map(str, value)) if isinstance(value, list) else value


def _amount(count: float | str) -> str:
    number = float(count)
    for scale, name in ((1e9, "billion"), (1e6, "million")):
        if number >= scale:
            return f"{number / scale:.3g} {name}"
    return f"{number:,.0f}"


def _date(text: Json) -> str | None:
    time = time_of(text)
    return time.strftime("%Y-%m-%d %H:%M UTC") if time else None


def _duration(sessions: Sequence[Fields]) -> str | None:
    """Return the total duration of the sessions, and the number of those without a recorded end."""
    total = duration_of(sessions)
    if not total:
        return None
    suffix = f" in {len(sessions)} sessions" if len(sessions) > 1 else ""
    unknown = sum(seconds_of(session) is None for session in sessions)
    return total + suffix + (f", and the unknown time of {unknown} without a recorded end" if unknown else "")
