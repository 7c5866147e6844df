"""What a run that is done says: how long it took, what came out, and the commands that one gives next."""

from __future__ import annotations

import shlex
from collections.abc import Iterator
from pathlib import Path

from jaxrl_sql.runtime.progress import duration
from jaxrl_sql.training.session import Session
from jaxrl_sql.types import Example


def tell_end(s: Session) -> None:
    """Show how long this session took, what it wrote, and three commands that go on from it, ready to be given."""
    activity = s.display.activity
    compiled = activity.compiled
    s.note(
        f"done in {duration(activity.clock() - activity.began)}, of which {duration(compiled.seconds)} went into "
        f"compiling {compiled.programs} programs"
    )
    for name in ("model", "adapters", "report.html"):
        if (path := s.folder / name).exists() or name == "report.html":  # which is written last of all
            s.note(f"{name.removesuffix('.html')}: {path}")
    for command in next_commands(s):
        s.note(f"next: {command}")


def next_commands(s: Session) -> Iterator[str]:
    """Yield the commands that write the report again, ask the model, and evaluate it, as a shell takes them."""
    run, data = str(s.folder), s.config.data
    split = data.evals[0] if data.evals else data.train
    yield shlex.join(["jaxrl-sql", "report", run])
    one = next(iter(next(iter(s.evals.values()), s.train).examples))
    yield shlex.join(["jaxrl-sql", "ask", "--model", run, *_asked(one)])
    if s.caller.examples is not None or s.caller.evals is not None:  # in no folder
        return
    folder = Path(data.dir) / split
    questions = ["--data", str(folder)] if folder.is_dir() else ["--data", data.dir, "--split", split]
    yield shlex.join(["jaxrl-sql", "evaluate", "--model", run, *questions, "--out", str(s.folder / "evaluated")])


def _asked(example: Example) -> list[str]:
    """Return a question of the data and its database; a server's URL is left out, which may hold a password."""
    return ["--db", "URL" if example.engine_url else example.db_path, example.question]
