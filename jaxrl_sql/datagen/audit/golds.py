"""Run the golds (reference queries) of a set and find those that fail, are uninformative, or match a constant answer.

A test suite holds variants of a database: the same tables with other rows. A gold whose result is the same on all
variants does not depend on the rows. Two golds with equal results on the original database and different results on a
variant are distinguished by the suite only, so that the original database alone would accept a wrong query.
"""

from __future__ import annotations

import hashlib
from collections import defaultdict
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any, NamedTuple, Protocol

from jaxrl_sql.datagen.audit.finding import Finding, QuestionSet
from jaxrl_sql.runtime.display import Display, make_display
from jaxrl_sql.runtime.progress import ProgressCallback, no_progress
from jaxrl_sql.text2sql.env.dialect import normal_form
from jaxrl_sql.text2sql.env.executor import SOUND_RULES, score_rows
from jaxrl_sql.text2sql.env.ports import SqlExecutor, SqlOutcome
from jaxrl_sql.text2sql.env.verdicts import raise_if_unreachable
from jaxrl_sql.text2sql.question_sets.filters import is_trivial
from jaxrl_sql.types import Example, Record

_FAILS, _TIMES_OUT = "gold: fails", "gold: times out"
FAILURES = (_FAILS, _TIMES_OUT)
"""The findings of golds without a result."""

CONSTANTS: Mapping[str, str] = {
    "empty": "SELECT NULL FROM (SELECT 1) AS t WHERE 1 = 0",
    "0": "SELECT 0",
    "1": "SELECT 1",
    "NULL": "SELECT NULL",
}
"""Answers that do not depend on the question, by name."""

# Outcomes hold their rows in memory, so golds run in chunks.
_CHUNK = 128
_MAX_IDS = 5  # that a finding lists


class _OutcomeWithRows(SqlOutcome, Protocol):
    @property
    def rows(self) -> Sequence[tuple[Any, ...]]:
        """Return the rows."""
        ...


class RowExecutor(SqlExecutor, Protocol):
    """An executor whose outcomes include rows."""

    def execute_many(self, requests: Sequence[tuple[str, str]], /) -> Sequence[_OutcomeWithRows]:
        """Run (database, SQL) pairs and return their outcomes in order."""
        ...


class GoldResult(NamedTuple):
    """The result of a gold on one database.

    `status` is the executor's, `rows` the number of rows, and `ms` the time. `digest` is a hash of the rows that does
    not depend on their order, or "" if the gold failed. `is_trivial`: the only row has only 0 and NULL.
    """

    status: str
    error: str
    rows: int
    digest: str
    ms: float
    is_trivial: bool


def audit_golds(
    executor: RowExecutor,
    questions: QuestionSet,
    slow_ms: float = 5_000.0,
    suite: Path | None = None,
    display: Display | None = None,
) -> list[Finding]:
    """Run the golds of a set and return the findings, in the order of the checks.

    A gold that takes more than `slow_ms` milliseconds is a finding; 0 disables this check. `suite` is a folder with the
    variants of test suites, `databases/<db_id>/*.sqlite`, for questions whose set has none. `display` shows the
    progress. Golds that are result tables instead of SQL are only compared with constants.
    """
    display = display or make_display("none", 0, "")
    examples = [example for example in questions.examples if example.gold_sql]
    with display.task(f"{questions.name}: running the golds", len(examples), "golds") as on_progress:
        results = run_all(executor, [(example.database, example.gold_sql) for example in examples], on_progress)
    findings = [
        Finding(kind, questions.name, example.uid, details)
        for example, gold in zip(examples, results, strict=True)
        for kind, details in _find_problems(gold, slow_ms)
    ]
    failed = {example.uid for example, gold in zip(examples, results, strict=True) if gold.status != "ok"}
    comparable = [example for example in questions.examples if example.uid not in failed]
    with display.task(f"{questions.name}: comparing with answers that are empty or constant"):
        findings += _find_constant_matches(executor, questions._replace(examples=tuple(comparable)))
    variants = {example.database: _variants(example, suite) for example in examples}
    if any(variants.values()):
        with display.task(f"{questions.name}: running golds on the test suite"):
            findings += _find_suite_problems(executor, questions.name, examples, results, variants)
    return findings


def run_all(
    executor: RowExecutor, pairs: Sequence[tuple[str, str]], on_progress: ProgressCallback = no_progress
) -> list[GoldResult]:
    """Run (database, SQL) pairs and return their results, without the rows.

    Raises UnreachableServerError or InputError if a server does not answer or refuses its role.
    """
    results: list[GoldResult] = []
    for start in range(0, len(pairs), _CHUNK):
        on_progress(start)
        chunk = pairs[start : start + _CHUNK]
        outcomes = executor.execute_many(chunk)
        failed = (pair[0] for pair, outcome in zip(chunk, outcomes, strict=True) if outcome.status == "db_error")
        raise_if_unreachable(executor, failed)
        results += map(_gold_result, outcomes)
    return results


def _gold_result(outcome: _OutcomeWithRows) -> GoldResult:
    if outcome.status != "ok":
        return GoldResult(outcome.status, outcome.error or "", 0, "", outcome.elapsed_ms, is_trivial=False)
    rows = outcome.rows
    lines = sorted(repr(tuple(map(_whole_to_int, row))) for row in rows)
    digest = hashlib.sha256("\n".join(lines).encode("utf-8", errors="surrogateescape")).hexdigest()
    return GoldResult("ok", "", len(rows), f"{len(rows)}:{digest}", outcome.elapsed_ms, is_trivial(rows))


def _whole_to_int(value: object) -> object:
    """Convert whole floats to integers, because 2.0 equals 2 in a result."""
    return int(value) if isinstance(value, float) and value.is_integer() else value


def _find_problems(gold: GoldResult, slow_ms: float) -> list[tuple[str, Record]]:
    """Return (kind, details) of the findings on a gold's result on its own database."""
    if gold.status == "timeout":
        return [(_TIMES_OUT, {"ms": round(gold.ms, 1)})]
    if gold.status != "ok":
        return [(_FAILS, {"status": gold.status, "error": gold.error})]
    problems: list[tuple[str, Record]] = []
    if gold.rows == 0:
        problems.append(("gold: empty", {}))
    if gold.is_trivial:
        problems.append(("gold: one row of 0 or NULL", {}))
    if slow_ms and gold.ms > slow_ms:
        problems.append(("gold: slow", {"ms": round(gold.ms, 1)}))
    return problems


def _find_constant_matches(executor: RowExecutor, questions: QuestionSet) -> list[Finding]:
    """Find golds that an answer of `CONSTANTS` matches by some comparison rule; the details name the rules."""
    examples = [example for example in questions.examples if example.golds]
    # The matching rules by question and answer.
    matched: dict[str, dict[str, list[str]]] = defaultdict(dict)
    for start in range(0, len(examples), _CHUNK):
        chunk = examples[start : start + _CHUNK]
        for name, sql in CONSTANTS.items():
            columns = executor.score_many(
                [example.database for example in chunk],
                [sql] * len(chunk),
                [example.golds for example in chunk],
                rules=SOUND_RULES,
            )
            for example, row in zip(chunk, score_rows(columns, SOUND_RULES), strict=True):
                if rules := [rule for rule in SOUND_RULES if row.matches(rule)]:
                    matched[example.uid][name] = rules
    return [
        Finding("gold: matched by a constant", questions.name, example.uid, {"answers": matched[example.uid]})
        for example in examples
        if example.uid in matched
    ]


def _variants(example: Example, suite: Path | None) -> list[str]:
    """Return the paths of the variants of an example's database: the databases of its suite except its own."""
    paths = list(example.suite)
    if not paths and suite is not None and not example.engine_url:
        paths = [str(path) for path in sorted((suite / "databases" / example.db_id).glob("*.sqlite"))]
    return [path for path in paths if Path(path).resolve() != Path(example.db_path).resolve()]


def _find_suite_problems(
    executor: RowExecutor,
    name: str,
    examples: Sequence[Example],
    golds: Sequence[GoldResult],
    variants: Mapping[str, Sequence[str]],
) -> list[Finding]:
    """Find golds that fail on a variant, never change, or equal another gold on the original database only.

    `golds[i]` is the result of `examples[i]` on its own database; `variants` has the paths of variants by database.
    """
    pairs = [(path, example.gold_sql) for example in examples for path in variants[example.database]]
    results = iter(run_all(executor, pairs))
    on_variants = [[next(results) for _ in variants[example.database]] for example in examples]
    findings: list[Finding] = []
    # The indices of the examples with the same result on the same database.
    equal_results: dict[tuple[str, str], list[int]] = defaultdict(list)
    for i, (example, gold, others) in enumerate(zip(examples, golds, on_variants, strict=True)):
        if gold.status != "ok" or not others:
            continue
        equal_results[example.db_path, gold.digest].append(i)
        failed = [other.status for other in others if other.status != "ok"]
        if failed:
            details: Record = {"variants": len(others), "failed": len(failed), "statuses": sorted(set(failed))}
            findings.append(Finding("suite: gold fails on a variant", name, example.uid, details))
        elif all(other.digest == gold.digest for other in others):
            details = {"variants": len(others), "rows": gold.rows}
            findings.append(Finding("suite: gold never changes", name, example.uid, details))
    normal_forms = [normal_form(example.gold_sql) for example in examples]
    for indices in equal_results.values():
        for i in indices:
            confusable = [
                j for j in indices
                if normal_forms[j] != normal_forms[i] and _digests(on_variants[j]) != _digests(on_variants[i])
            ]  # fmt: skip
            if confusable:
                uids = [examples[j].uid for j in confusable[:_MAX_IDS]]
                details = {"with": uids, "times": len(confusable), "rows": golds[i].rows}
                findings.append(Finding("suite: equal to another gold on one database", name, examples[i].uid, details))
    return findings


def _digests(results: Sequence[GoldResult]) -> list[str]:
    return [result.digest for result in results]
