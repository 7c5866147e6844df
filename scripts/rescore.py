"""Score prediction files on one benchmark and compare the systems by each rule.

`python scripts/rescore.py --data FOLDER --split dev A.sql B.json …` prints each file's share by every rule with its 95
% interval. For each rule it also prints every file's difference from the first: points with their interval, and two p
values. One is of a sign-flip test over databases, one of McNemar's exact test, which assumes independent questions.
`--differences FILE` writes the questions on which rules disagree as JSON lines: the rules that accept the prediction,
statuses, numbers of rows, and reasons. Files have a format that `evaluate` reads: JSON lines, a JSON list, BIRD's JSON,
a table, or lines of SQL. The exit code is 2 if a file does not match the questions.
"""

from __future__ import annotations

import argparse
import json
import sys
from collections.abc import Mapping, Sequence
from pathlib import Path

from jaxrl_sql.runtime.terminal import print_text
from jaxrl_sql.text2sql.benchmarks import load_benchmark
from jaxrl_sql.text2sql.env.executor import RULE_NAMES, Executor, Limits
from jaxrl_sql.text2sql.evals.differences import EXACT
from jaxrl_sql.text2sql.evals.pairs import caution, compare_runs
from jaxrl_sql.text2sql.evals.predictions import pair, read_predictions
from jaxrl_sql.text2sql.evals.score_predictions import score_predictions
from jaxrl_sql.text2sql.evals.summary import Share, summarize
from jaxrl_sql.text2sql.evals.tables import ReportTable, as_markdown
from jaxrl_sql.text2sql.evals.verdict import Verdict
from jaxrl_sql.types import Example, InputError


def main(arguments: Sequence[str] | None = None) -> int:
    """Print the tables; return the exit code."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("files", nargs="+", type=Path, metavar="FILE", help="predictions; the first is the baseline")
    parser.add_argument("--data", type=Path, required=True, help="a benchmark's folder as published")
    parser.add_argument("--split", default="", help="default: the benchmark's usual split")
    parser.add_argument("--rules", nargs="+", default=list(RULE_NAMES), choices=RULE_NAMES, metavar="RULE")
    parser.add_argument("--field", default="", help="the field of the predicted SQL, if a file has several")
    parser.add_argument("--allow-missing", action="store_true", help="count questions without a prediction as wrong")
    parser.add_argument("--timeout-ms", type=int, default=30_000, help="time limit per query (default: 30000)")
    parser.add_argument(
        "--differences", type=Path, metavar="FILE", help="write the questions on which rules differ as JSON lines"
    )
    options = parser.parse_args(arguments)
    try:
        rescore(options)
    except (InputError, OSError) as error:
        print_text(f"error: {error}", sys.stderr)
        return 2
    return 0


def rescore(options: argparse.Namespace) -> None:
    """Score the files, print the tables and write the differences."""
    names = [file.stem for file in options.files]
    if len(set(names)) < len(names):
        names = [str(file) for file in options.files]
    benchmark = load_benchmark(options.data, options.split)
    examples = benchmark.examples
    order = [*(benchmark.order or (item.uid for item in examples))]
    runs = {}
    with Executor(limits=Limits(timeout_ms=options.timeout_ms)) as executor:
        for name, file in zip(names, options.files, strict=True):
            sqls = pair(read_predictions(file, options.field), examples, order, options.allow_missing).sqls
            arguments = [sqls.get(example.uid) for example in examples]
            predicted = [benchmark.prepare(sql) if benchmark.prepare and sql else sql for sql in arguments]
            runs[name] = score_predictions(executor, examples, predicted, options.rules)
    print(as_markdown([shares(examples, runs, options.rules), *against_first(examples, runs, options.rules)]))
    if options.differences:
        lines = [json.dumps(row, ensure_ascii=False) for name in names for row in differences(name, runs[name])]
        options.differences.write_text("".join(f"{line}\n" for line in lines), encoding="utf-8")
        print(f"{options.differences}: {len(lines)} questions on which rules differ")


def shares(examples: Sequence[Example], runs: Mapping[str, Sequence[Verdict]], rules: Sequence[str]) -> ReportTable:
    """Return each file's share by each rule, with its interval."""
    rows = []
    for name, verdicts in runs.items():
        result = summarize(examples, verdicts).scores
        rows.append((name, *(_share(result.get(rule)) for rule in rules)))
    return ReportTable(f"{len(examples)} questions: %, with 95 % intervals", ("file", *rules), tuple(rows))


def against_first(
    examples: Sequence[Example], runs: Mapping[str, Sequence[Verdict]], rules: Sequence[str]
) -> list[ReportTable]:
    """Return the difference of each further file from the first by each rule."""
    (first, before), *others = runs.items()
    result = []
    columns = ("rule", "points (95 %)", "sign-flip p", "McNemar p", "better", "worse")
    for name, verdicts in others:
        pairs = [compare_runs(examples, before, verdicts, rule) for rule in rules]
        rows = tuple(
            (
                paired.rule,
                f"{100 * paired.difference:+.1f} ({100 * paired.low:+.1f} to {100 * paired.high:+.1f})",
                f"{paired.p_value:.2g}",
                f"{paired.p_mcnemar:.2g}",
                str(len(paired.better)),
                str(len(paired.worse)),
            )
            for paired in pairs
        )
        few = caution(min(paired.databases for paired in pairs))
        result.append(ReportTable(f"{name} against {first}" + (f": {few}" if few else ""), columns, rows))
    return result


def differences(name: str, verdicts: Sequence[Verdict]) -> list[dict[str, object]]:
    """Return the questions on which the binary rules disagree."""
    rows: list[dict[str, object]] = []
    for verdict in verdicts:
        output = {rule: verdict.is_right(rule) for rule in verdict.scores if rule in EXACT}
        if len(set(output.values())) > 1:
            right, wrong = ([rule for rule in output if output[rule] is is_right] for is_right in (True, False))
            rows.append(
                {
                    "file": name,
                    "id": verdict.uid,
                    "right": right,
                    "wrong": wrong,
                    "reasons": list(verdict.reasons),
                    "status": verdict.status,
                    "gold_status": verdict.gold_status,
                    "rows": verdict.pred_rows,
                    "gold_rows": verdict.gold_rows,
                    "sql": verdict.sql,
                }
            )
    return rows


def _share(share: Share | None) -> str:
    return f"{100 * share.mean:.1f} ({100 * share.low:.1f}–{100 * share.high:.1f})" if share else "–"


if __name__ == "__main__":
    sys.exit(main())
