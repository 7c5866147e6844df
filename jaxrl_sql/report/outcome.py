"""The outcome of a run: the first sentence of its report, and for a stopped run where it stopped and how to resume.

A session is one process of the run, from its start or resumption to its end; sessions are recorded in `about.json`. The
`outcome` of a session is complete, stopped or failed. It is missing for a session without a recorded end, which still
runs or was killed.
"""

from __future__ import annotations

import shlex
from collections.abc import Sequence
from datetime import datetime
from pathlib import Path

from jaxrl_sql.report.load import RunFiles, first_grpo_step, series
from jaxrl_sql.runtime.folder import list_saved_steps
from jaxrl_sql.runtime.progress import duration
from jaxrl_sql.types import Fields, Json, Record

COMPLETE, STOPPED, FAILED = "complete", "stopped", "failed"
# Metrics whose first and last values a stopped run's report shows, by phase.
_LOSSES = (
    ("sft", (("sft/loss", "SFT loss"), ("sft/held_out_loss", "held-out loss"))),
    ("grpo", (("policy/loss", "policy loss"), ("value/loss", "value loss"), ("reward/mean", "mean reward"))),
    ("grpo2", (("policy/loss", "policy loss"), ("value/loss", "value loss"), ("reward/mean", "mean reward"))),
)


def sessions_of(run: RunFiles) -> list[Fields]:
    """Return the sessions of a run, first to last."""
    sessions = run.about.get("sessions")
    return [session for session in sessions if isinstance(session, dict)] if isinstance(sessions, list) else []


def time_of(value: Json) -> datetime | None:
    """Return a recorded time; None if it is invalid."""
    try:
        return datetime.fromisoformat(value)
    except (TypeError, ValueError):
        return None


def seconds_of(session: Fields) -> float | None:
    """Return the duration of a session; None without a recorded end."""
    seconds = session.get("seconds")
    if isinstance(seconds, int | float):
        return float(seconds)
    began, ended = time_of(session.get("began")), time_of(session.get("ended"))
    return (ended - began).total_seconds() if began and ended else None


def duration_of(sessions: Sequence[Fields]) -> str:
    """Return the total duration of sessions as the terminal prints it; "" if no end is recorded."""
    known = [seconds for session in sessions if (seconds := seconds_of(session)) is not None]
    return duration(sum(known)) if known else ""


def shown_path(run: RunFiles) -> str:
    """Return the path of a run's folder as `run.dir` has it, relative to where the run was started.

    If the folder has moved, or `run.dir` is no such relative path, the present path is returned.
    """
    run_dir, folder = Path(str(run.setting("run.dir") or "")), run.folder.resolve()
    names = [name for name in run_dir.parts if name != "."]
    is_relative = bool(names) and not run_dir.is_absolute() and ".." not in names
    if is_relative and list(folder.parts[-len(names) :]) == names:
        return str(run_dir)
    return str(run.folder) if run.folder.name else str(folder)


def view_command(run: RunFiles) -> str:
    """Return the command that shows a run's answers."""
    return shlex.join(["jaxrl-sql", "view", shown_path(run)])


def first_sentence(run: RunFiles, rows: Sequence[Fields]) -> str:
    """Return one sentence: accuracy before and after with intervals, steps and time.

    `rows` are the accuracies (`facts.accuracies`), of which the first is reported.
    """
    steps = _last_step(run)
    if not steps and not run.metrics:
        return "No step is recorded."
    time = duration_of(sessions_of(run))
    row = rows[0] if rows else None
    if is_stopped(run):
        accuracy = f"; {_past_accuracies(run, row)}" if row else ", before its first evaluation"
        return f"{_describe_stop(run, steps, time)}{accuracy}."
    progress = f"{_steps(steps)}{f' in {time}' if time else ''}"
    if row is None or not (row["after"] or row["before"]):
        return f"{progress[0].upper()}{progress[1:]}."
    if not row["after"]:
        return f"Accuracy on {row['name']} was {_share(row['before'], is_first=True)} before GRPO; {progress}."
    before = f"was {_share(row['before'], is_first=True)} {_time_of_first(run, row)} and " if row["before"] else ""
    after = _share(row["after"], is_first=not before)
    return f"Accuracy on {row['name']} {before}is {after} after {progress}{_difference(row)}."


def stop_lines(run: RunFiles) -> list[list[str]]:
    """Return the lines of a stopped run as [text, command or ""]: how to continue, and its losses."""
    if not is_stopped(run):
        return []
    last_session = (sessions_of(run) or [{}])[-1]
    name = "train" if run.setting("grpo.steps", 1) else "sft"
    command = str(last_session.get("resume") or shlex.join(["jaxrl-sql", name, "--resume", shown_path(run)]))
    saved_steps = list_saved_steps(run.folder)
    advice = (
        f"The checkpoint of step {saved_steps[-1]} is complete. To continue: "
        if saved_steps
        else "No checkpoint is complete. To start from the first step: "
    )
    return [[advice, command], *([line, ""] for line in _losses(run))]


def is_stopped(run: RunFiles) -> bool:
    """Return whether the last session did not complete the run; False if a run has no recorded session."""
    sessions = sessions_of(run)
    if not sessions:
        return False
    outcome = sessions[-1].get("outcome")
    return outcome != COMPLETE and (outcome is not None or seconds_of(sessions[-1]) is None)


def _describe_stop(run: RunFiles, steps: int, time: str) -> str:
    last = sessions_of(run)[-1]
    total = _total(last)
    position = f"step {steps:,} of {total:,}" if total else f"step {steps:,}"
    reason = " ".join(str(last.get("reason") or "").split())
    match last.get("outcome"):
        case "stopped":
            return f"Stopped by {reason} at {position}{f' after {time}' if time else ''}"
        case None:
            return f"{position[0].upper()}{position[1:]}, without a recorded end{f'; {time} before' if time else ''}"
        case _:
            return f"Failed at {position}{f' after {time}' if time else ''}{f' ({reason})' if reason else ''}"


def _total(session: Fields) -> int:
    """Return the planned steps of a session; 0 if unknown."""
    phases = session.get("phases")
    try:
        return int(phases[-1][1])  # type: ignore[index]
    except (TypeError, ValueError, IndexError, KeyError):
        return 0


def _last_step(run: RunFiles) -> int:
    return max((int(row["step"]) for row in run.metrics), default=0)


def _steps(steps: int) -> str:
    return "1 step" if steps == 1 else f"{steps:,} steps"


def _past_accuracies(run: RunFiles, row: Fields) -> str:
    """Return the accuracies of a stopped run."""
    first_step, last_step = row["steps"]
    accuracies = ((row["before"], _time_of_first(run, row)), (row["after"], f"at step {last_step:,}"))
    shown = [(accuracy, time) for accuracy, time in accuracies if accuracy]
    if first_step == last_step:
        shown = [(accuracy, f"at step {last_step:,}") for accuracy, _ in shown]
    shares = [f"{_share(accuracy, is_first=not i)} {time}" for i, (accuracy, time) in enumerate(shown)]
    return f"accuracy on {row['name']} was {' and '.join(shares) or 'not finite'}"


def _time_of_first(run: RunFiles, row: Fields) -> str:
    """Return when the earlier evaluation took place, such as `before GRPO`."""
    grpo_start, step = first_grpo_step(run), row["steps"][0]
    return "before GRPO" if grpo_start is not None and step < grpo_start else f"at step {step:,}"


def _share(share: Fields, *, is_first: bool) -> str:
    """Return a share (`intervals.share_of`) as text; the first one of a sentence explains its bounds."""
    bounds = f"{100 * share['low']:.1f} to {100 * share['high']:.1f}"
    return f"{100 * share['mean']:.1f} % ({'95 % interval ' if is_first else ''}{bounds})"


def _difference(row: Fields) -> str:
    paired = row.get("difference")
    if not paired:
        return ""
    mean, low, high = (100 * paired[name] for name in ("mean", "low", "high"))
    return f", a difference of {mean:+.1f} points ({low:+.1f} to {high:+.1f})"


def _losses(run: RunFiles) -> list[str]:
    """Return a line per phase with the first and last value of its losses."""
    lines: list[str] = []
    for phase, metrics in _LOSSES:
        shown: list[Record] = []
        for name, label in metrics:
            if points := series(run, name, phase):
                shown.append({"text": f"{label} {points[0][1]:.3f} → {points[-1][1]:.3f}", "points": points})
        if shown:
            steps = [step for item in shown for step, _ in item["points"]]
            lines.append(f"{', '.join(item['text'] for item in shown)} (steps {min(steps):,} to {max(steps):,})")
    return lines
