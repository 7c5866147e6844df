"""Generate data: `jaxrl-sql data synth --out DIR --seed N`, or for your own databases `--db FILE …`.

Without `--db`, databases and questions are generated in three splits: train, dev (new databases of the same domains)
and dev_unseen (databases of domains that train lacks). A tokenizer is trained on the split train. With `--db`, `--n`
questions are generated per file, from templates over its tables and rows, and DIR is a single folder with
questions.jsonl and databases/.
"""

from __future__ import annotations

import argparse
import os
import sys
from collections import Counter
from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING

from jaxrl_sql.commands.arguments import Parser, add_leave_out, not_empty
from jaxrl_sql.commands.running import report_errors
from jaxrl_sql.datagen.synth.spec import DIFFICULTIES, SPLITS, STYLES, SynthReport, SynthSpec
from jaxrl_sql.runtime.progress import quantity
from jaxrl_sql.runtime.terminal import print_text
from jaxrl_sql.types import InputError

if TYPE_CHECKING:
    from jaxrl_sql.datagen.synth.user_databases import FileQuestions


_NUMBERS = {
    "seed": "seed of all random choices",
    "train_dbs": "databases of the split train",
    "dev_dbs": "databases of the split dev",
    "unseen_dbs": "databases of the split dev_unseen",
    "train_questions": "questions per database of train",
    "dev_questions": "questions per database of dev and dev_unseen",
    "vocab_size": "largest number of tokens of the trained tokenizer",
}
"""Options with a whole number, and their meaning."""


def _parser() -> argparse.ArgumentParser:
    parser = Parser(
        description=__doc__,
        formatter_class=argparse.RawDescriptionHelpFormatter,
    )
    parser.add_argument("--out", type=Path, required=True, help="output folder")
    default = SynthSpec()
    for name, meaning in _NUMBERS.items():
        value = getattr(default, name)
        option = f"--{name.replace('_', '-')}"
        parser.add_argument(option, type=int, default=value, help=f"{meaning}; default {value}")
    parser.add_argument(
        "--decorated-share",
        type=float,
        default=default.decorated_share,
        help="share of training databases whose names get additional general words; with --style templates only; "
        f"default {default.decorated_share:g}",
    )
    parser.add_argument(
        "--extra-columns-share",
        type=float,
        default=0.0,
        help="share of suitable training questions with a demonstration that wrongly selects an extra column, for "
        "policies with a mistake to unlearn; default 0",
    )
    parser.add_argument("--splits", nargs="+", default=default.splits, help=f"some of {', '.join(SPLITS)}; default all")
    parser.add_argument("--rows", type=int, default=0, help="mean rows per table; default 1,000 to 3,000 per database")
    for difficulty in DIFFICULTIES:
        shares = (SynthSpec(style=style).shares[DIFFICULTIES.index(difficulty)] for style in STYLES)
        defaults = ", ".join(f"{share:g} ({style})" for share, style in zip(shares, STYLES, strict=True))
        parser.add_argument(
            f"--{difficulty}", type=float, help=f"relative share of questions of this difficulty, default {defaults}"
        )
    parser.add_argument(
        "--style",
        choices=STYLES,
        default=STYLES[0],
        help="generator of the questions: fixed templates, or a grammar with Spider's difficulties and varied database "
        f"names; default {STYLES[0]}",
    )
    parser.add_argument(
        "--mysql-share", type=float, default=0.0, help="share of questions that ask for MySQL's dialect; default 0"
    )
    user_group = parser.add_argument_group("your own databases")
    user_group.add_argument(
        "--db",
        nargs="+",
        type=not_empty,
        metavar="FILE|URL",
        help="SQLite files, or servers' databases, to ask about",
    )
    add_leave_out(parser)
    user_group.add_argument("--n", type=int, default=200, help="questions per file, default 200")
    user_group.add_argument("--link", action="store_true", help="link to the files instead of copying them")
    return parser


def _print(out: Path, report: SynthReport) -> None:
    state = "already there, nothing done" if report.was_present else "written"
    lines = [f"{out}: {state} (seed {report.spec.seed})"]
    for split, count in report.questions.items():
        tokens = ", ".join(f"{name} {value:g}" for name, value in report.tokens.get(split, {}).items())
        line = f"{split}: {quantity(count, 'questions')} on {quantity(report.databases[split], 'databases')}"
        lines.append(f"{line}; tokens: {tokens}" if tokens else line)
    lines.append("difficulties: " + ", ".join(f"{difficulty} {count}" for difficulty, count in report.grades.items()))
    print_text("\n".join(lines))


def _print_files(out: Path, files: Sequence[FileQuestions], requested: int) -> None:
    lines = [f"{out}: written"]
    for file in files:
        counts = Counter(question.template_difficulty for question in file.questions)
        counts_text = ", ".join(f"{level} {counts[level]}" for level in DIFFICULTIES if counts[level])
        shortfall = "" if len(file.questions) >= requested else f" of {requested} requested"
        lines.append(f"{file.db_id}: {quantity(len(file.questions), 'questions')}{shortfall}; {counts_text}")
        lines += [f"  candidates left out: {count:>6}  {reason}" for reason, count in file.rejected.most_common()]
        reasons: dict[str, list[str]] = {}
        for name, reason in file.left_out:
            reasons.setdefault(reason, []).append(name)
        lines += [
            f"  not asked about: {len(names):>6}  {reason}, such as {names[0]}" for reason, names in reasons.items()
        ]
    print_text("\n".join(lines))


def _note(line: str) -> None:
    print_text(line, sys.stderr)


def main(arguments: list[str] | None = None) -> int:
    """Generate data, print a summary, and return the exit code."""
    options = _parser().parse_args(arguments)
    values = {name: value for name, value in vars(options).items() if name in SynthSpec.__dataclass_fields__}
    spec = SynthSpec(**values | {"splits": tuple(options.splits)})
    os.environ.setdefault("TRANSFORMERS_VERBOSITY", "error")  # silence a warning about missing torch

    def work() -> None:
        if options.db:
            if options.n < 1:
                raise InputError(f"synth: n must be at least 1, not {options.n}")
            from jaxrl_sql.datagen.synth.user_databases import generate_for_databases

            files = generate_for_databases(
                options.db, options.out, options.n, spec, options.leave_out, is_linked=options.link, note=_note
            )
            _print_files(options.out, files, options.n)
        else:
            from jaxrl_sql.datagen.synth.dataset import check_spec, find_generated, generate
            from jaxrl_sql.runtime.display import make_display

            check_spec(spec)
            if report := find_generated(options.out, spec):
                _print(options.out, report)
                return
            options.out.resolve().parent.mkdir(parents=True, exist_ok=True)  # an error here precedes the display
            with (
                make_display(
                    "auto", spec.databases, f"data synth in {options.out}", sys.stderr, unit="database"
                ) as display,
                display.task("generating databases", spec.databases, "databases") as on_progress,
            ):
                report = generate(options.out, spec, on_progress)
            _print(options.out, report)

    return report_errors(work)
