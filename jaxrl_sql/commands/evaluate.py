"""Evaluate predictions or a model on a benchmark with several scoring rules (variants of execution accuracy).

`jaxrl-sql evaluate --data DIR --predictions FILE --out DIR` needs neither a model nor jax. With `--model M` instead of
predictions, the model answers; with `--endpoint URL --model M`, a model behind an endpoint. `--as SYSTEM` sets prompt,
schema, sampling and rule as in that system's paper. `--compare A B` compares two finished evaluations. Other settings
are in the section `evaluate` of the configuration. The folder `--out` holds metrics.json, records.jsonl, the
predictions in the benchmark's format and config.yaml. If interrupted, the same command resumes from journal.jsonl.
"""

from __future__ import annotations

import argparse
import sys
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING

from jaxrl_sql.api import run_evaluation
from jaxrl_sql.commands.arguments import MODEL_HELP, Parser, add_config, add_endpoint
from jaxrl_sql.commands.running import report_errors, run_or_print
from jaxrl_sql.config import EvaluateConfig, load_config
from jaxrl_sql.config.load import SYSTEMS
from jaxrl_sql.inference.evaluation_config import EvaluationRequest, evaluation_layers, prompt_warning
from jaxrl_sql.inference.process import prepare_process
from jaxrl_sql.runtime.tables import show_table
from jaxrl_sql.runtime.terminal import print_text
from jaxrl_sql.types import InputError

if TYPE_CHECKING:
    from jaxrl_sql.inference.benchmark_evaluation import EvaluationResult
    from jaxrl_sql.text2sql.evals.tables import ReportTable

# Number of questions with other scores that a comparison prints.
_CHANGED_SHOWN = 30


def main(arguments: Sequence[str] | None = None) -> int:
    """Parse the command line, evaluate or compare, and return the exit code."""
    parser = Parser(description=__doc__)
    add_config(parser, EvaluateConfig)
    parser.add_argument(
        "--data", action="append", default=[], metavar="DIR", help="a benchmark's folder; may be repeated"
    )
    parser.add_argument(
        "--split", help="split of the benchmark (default: the one that the benchmark scores, such as dev)"
    )
    description = "predicted SQL by question: one file for each --data"
    parser.add_argument("--predictions", action="append", default=[], metavar="FILE", help=description)
    field = "field of predicted SQL in --predictions, if not pred_sql or sql"
    parser.add_argument("--field", dest="sql_field", metavar="NAME", help=field)
    parser.add_argument("--model", help=f"{MODEL_HELP}; with --endpoint its name there")
    parser.add_argument(
        "--as", dest="system", metavar="SYSTEM", help=f"evaluate as in the paper of a system: {', '.join(SYSTEMS)}"
    )
    add_endpoint(parser, "evaluate")
    parser.add_argument("--recipe", help="recipe of prompt and answer format (default: the model's own)")
    parser.add_argument("--out", type=Path, metavar="DIR", help="output folder; interrupted evaluations resume there")
    parser.add_argument("--allow-missing", action="store_true", help="exclude questions without a prediction")
    parser.add_argument("--allow-extra", action="store_true", help="ignore predictions without a question")
    parser.add_argument("--compare", nargs=2, type=Path, metavar=("A", "B"), help="two output folders to compare")
    parser.add_argument("overrides", nargs="*", metavar="key.sub=value", help="values that replace the file's")
    args = parser.parse_intermixed_args(arguments)
    prepare_process()
    if args.compare:
        first, second = args.compare
        return report_errors(lambda: _compare(first, second, args))
    return report_errors(lambda: _evaluate(args))


def _evaluate(args: argparse.Namespace) -> int:
    """Evaluate and print the tables."""
    names = ("data", "split", "predictions", "sql_field", "model", "endpoint", "system", "recipe")
    request = EvaluationRequest(
        **{name: getattr(args, name) for name in names if getattr(args, name)},
        out=str(args.out or ""),
        allow_missing=args.allow_missing,
        allow_extra=args.allow_extra,
    )
    config = load_config(EvaluateConfig, args.config, *evaluation_layers(request, args.overrides, args.config))
    if warning := prompt_warning(config.evaluate, config.data.prompt):
        print_text(warning, sys.stderr)
    return run_or_print(lambda cfg: show(run_evaluation(cfg)), config, args)


def show(result: EvaluationResult) -> int:
    """Print the tables of each set, an overview of several sets, warnings, speed and files; return the exit code."""
    from jaxrl_sql.text2sql.evals.tables import overview, tables

    set_tables = [table for judged_set in result.sets for table in tables(judged_set)]
    for table in [*set_tables, overview(result.sets, result.numbers)] if len(result.sets) > 1 else set_tables:
        _show(table)
    for warning in result.warnings:
        print_text(warning)
    if result.speed is not None:
        show_speed(result.speed)
    print_text("\n".join(map(str, result.files)))
    return 0


def show_speed(numbers: Mapping[str, float]) -> None:
    """Print the speed of a model's answers."""
    rows = (
        ("questions", f"{numbers['questions']:,}"),
        ("tokens generated", f"{numbers['tokens']:,}"),
        ("tokens/s", f"{numbers['speed/tokens_per_s']:,.0f}"),
        ("seconds generating", f"{numbers['time/answering']:,.1f}"),
        ("total seconds", f"{numbers['time/total']:,.1f}"),
        ("peak memory, GiB", f"{numbers['memory/peak'] / (1 << 30):.2f}"),
    )
    show_table(sys.stdout, "generation speed, without answers of earlier calls", ("", ""), rows)


def _compare(first: Path, second: Path, args: argparse.Namespace) -> int:
    """Compare two evaluations; raises InputError for options that a comparison would ignore."""
    others = {name: value for name, value in vars(args).items() if name not in ("compare", "out") and value}
    if others:
        raise InputError(f"--compare compares two finished folders and accepts only --out, not {', '.join(others)}")
    return compare(first, second, args.out or second)


def compare(first: Path, second: Path, out: Path) -> int:
    """Print two finished evaluations side by side, write compare.md and compare.json, and return the exit code."""
    from jaxrl_sql.text2sql.evals.side_by_side import (
        compare_table,
        make_changes_table,
        questions_table,
        side_by_side,
        write_comparison,
    )

    comparison = side_by_side(first, second)
    try:
        written = write_comparison(comparison, out)
    except OSError as error:
        raise InputError(f"--out {out} cannot be written: {error.strerror or error}") from error
    for note in comparison.notes:
        print_text(note)
    _show(compare_table(comparison))
    _show(questions_table(comparison))
    changes = make_changes_table(comparison)
    if changes.rows:
        _show(changes._replace(rows=changes.rows[:_CHANGED_SHOWN]))
    else:
        print_text(changes.title)
    print_text("\n".join(map(str, written)))
    return 0


def _show(table: ReportTable) -> None:
    show_table(sys.stdout, table.title, table.columns, table.rows, table.text_columns)
