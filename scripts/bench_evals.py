"""Measure the time of evaluation, and check golds by every rule.

Three parts on the real sets of `--data` (or JAXRL_SQL_DATA). Every gold against itself by every rule, with the golds
that a rule rejects. A file of predictions for Spider's dev set by all rules, with open databases. The same by the test
suite, with twelve variants per database. `--quick` uses only a tenth of Spider's dev set.
"""

from __future__ import annotations

import dataclasses
import os
import sys
from collections.abc import Sequence
from pathlib import Path

from harness import Goal, Report, make_parser, time_call

from jaxrl_sql.text2sql.benchmarks import load_split
from jaxrl_sql.text2sql.env.executor import Executor, Limits
from jaxrl_sql.text2sql.evals.efficiency import SPEED_RULES
from jaxrl_sql.text2sql.evals.features import features_of
from jaxrl_sql.text2sql.evals.parse import parse_cached
from jaxrl_sql.text2sql.evals.score_predictions import RULES, score_predictions
from jaxrl_sql.text2sql.evals.summary import summarize
from jaxrl_sql.text2sql.evals.verdict import Verdict
from jaxrl_sql.types import Example

SETS = ("spider_dev", "spider_train", "bird_superhero")
# All rules except those that use other databases or measure time.
ON_ONE = tuple(rule for rule in RULES if rule not in ("suite", *SPEED_RULES))
EXECUTOR = {"threads": 2, "isolation": "thread", "limits": Limits(timeout_ms=30_000)}
MAX_SECONDS = Goal(3.0, at_most=True)
MAX_SUITE_SECONDS = Goal(30.0, at_most=True)


def judge(examples: Sequence[Example], sqls: Sequence[str], rules: Sequence[str]) -> list[Verdict]:
    """Judge predictions with an executor whose databases are open; return the verdicts."""
    with Executor(**EXECUTOR) as executor:
        return score_predictions(executor, examples, sqls, rules)


def golds_against_themselves(report: Report, name: str, examples: Sequence[Example]) -> None:
    """Count the golds that fail, and those that a rule rejects."""
    verdicts = judge(examples, comment_golds(examples), ON_ONE)
    report.add(f"{name}, {len(examples):,} golds: do not run", sum(not verdict.gold_ok for verdict in verdicts))
    for rule in ON_ONE:
        refused = [verdict.uid for verdict in verdicts if rule in verdict.scores and not verdict.is_right(rule)]
        report.add(f"{name}, golds that run and are wrong by {rule} {' '.join(refused)}".rstrip(), len(refused))


def comment_golds(examples: Sequence[Example]) -> list[str]:
    """Return golds as predictions; the comment changes the text, so that the cache does not have its result."""
    return [f"-- again\n{example.gold_sql}" for example in examples]


def predictions(examples: Sequence[Example]) -> list[str]:
    """Return one prediction per question: its gold, or that of the question after next."""
    return [(examples[i] if i % 2 else examples[(i + 2) % len(examples)]).gold_sql for i in range(len(examples))]


def judge_by_all_rules(examples: Sequence[Example]) -> tuple[float, float]:
    """Judge and summarize predictions by all rules; return the seconds of both."""
    parse_cached.cache_clear()
    features_of.cache_clear()
    with Executor(**EXECUTOR) as executor:
        executor.execute_many([(path, "SELECT 1") for path in {example.db_path for example in examples}])
        judging, verdicts = time_call(lambda: score_predictions(executor, examples, predictions(examples), ON_ONE))
    return judging, time_call(lambda: summarize(examples, verdicts).metrics())[0]


def judge_suites(report: Report, examples: Sequence[Example], folder: Path) -> None:
    """Judge predictions and golds on all variants of their databases."""
    variants = {
        name: tuple(sorted(map(str, (folder / "databases" / name).glob("*.sqlite"))))
        for name in {example.db_id for example in examples}
    }
    examples = [dataclasses.replace(example, suite=variants[example.db_id]) for example in examples]
    judging = time_call(lambda: judge(examples, predictions(examples), ("test_suite", "suite")))[0]
    count = sum(map(len, variants.values()))
    report.add(f"judging on {count} variants of {len(variants)} databases", judging, "s", MAX_SUITE_SECONDS)
    golds = judge(examples, comment_golds(examples), ("suite",))
    refused = sum(gold.suite_gold_status == "ok" and not gold.is_right("suite") for gold in golds)
    report.add("golds that are wrong on their variants", refused)
    report.add("golds that do not run on their variants", sum(gold.suite_gold_status != "ok" for gold in golds))


def main() -> int:
    """Measure the three parts; return the exit code."""
    parser = make_parser(__doc__, turns=3)
    parser.add_argument("--data", type=Path, default=os.environ.get("JAXRL_SQL_DATA"), help="default: $JAXRL_SQL_DATA")
    options = parser.parse_args()
    if options.data is None or not options.data.is_dir():
        parser.error("--data or JAXRL_SQL_DATA must name the folder that holds spider_dev")
    every = 10 if options.quick else 1
    report = Report(options)
    for name in SETS[:1] if options.quick else SETS:
        golds_against_themselves(report, name, load_split(options.data, name).examples[::every])
    examples = load_split(options.data, "spider_dev").examples[::every]
    pairs = [judge_by_all_rules(examples) for _ in range(report.turns)]
    judging, summary = zip(*pairs, strict=True)
    name = f"{len(examples)} predictions by {len(ON_ONE)} rules"
    report.add(f"{name}: judging", judging, "s")
    # The machine may have other work, so the fastest turn is the best estimate.
    report.add(f"{name}: judging, the quickest", min(judging), "s", MAX_SECONDS)
    report.add(f"{name}: numbers by group, with intervals", summary, "s")
    judge_suites(report, examples, options.data / "spider_dev_testsuite")
    return report.finish()


if __name__ == "__main__":
    sys.exit(main())
