"""Run the generator: `python -m jaxrl_sql.data.synth --out DIR --seed N`."""

from __future__ import annotations

import argparse
import os
import sys
from pathlib import Path

from jaxrl_sql.data.synth.generate import generate
from jaxrl_sql.data.synth.spec import SynthReport, SynthSpec
from jaxrl_sql.types import InputError


def _parser() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(prog="python -m jaxrl_sql.data.synth", description=__doc__)
    parser.add_argument("--out", type=Path, required=True, help="folder to write to")
    default = SynthSpec()
    for name in ("seed", "train_dbs", "dev_dbs", "unseen_dbs", "train_questions", "dev_questions", "vocab_size"):
        value = getattr(default, name)
        parser.add_argument(f"--{name.replace('_', '-')}", type=int, default=value, help=f"default {value}")
    parser.add_argument("--decorated-share", type=float, default=default.decorated_share, help="of training databases")
    parser.add_argument("--talkative-share", type=float, default=default.talkative_share, help="of demonstrations")
    return parser


def _print(out: Path, report: SynthReport) -> None:
    state = "already there, nothing done" if report.was_present else "written"
    lines = [f"{out}: {state} (seed {report.spec.seed})"]
    for split, count in report.questions.items():
        tokens = ", ".join(f"{name} {value:g}" for name, value in report.tokens[split].items())
        lines.append(f"{split}: {count} questions on {report.databases[split]} databases; tokens: {tokens}")
    lines.append("grades: " + ", ".join(f"{grade} {count}" for grade, count in report.grades.items()))
    sys.stdout.write("\n".join(lines) + "\n")


def main(arguments: list[str] | None = None) -> int:
    """Generate and say what was made; return the exit code."""
    options = vars(_parser().parse_args(arguments))
    out = options.pop("out")
    os.environ.setdefault("TRANSFORMERS_VERBOSITY", "error")  # it would complain that torch is not there
    try:
        _print(out, generate(out, SynthSpec(**options)))
    except InputError as error:
        sys.stderr.write(f"{error}\n")
        return 2
    return 0


if __name__ == "__main__":
    sys.exit(main())
