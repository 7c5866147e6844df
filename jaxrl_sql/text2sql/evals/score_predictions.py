"""Score predictions against golds by several rules: those of the benchmarks' own evaluations, and others.

A verdict separates failures of the prediction from failures of the gold. A question whose gold fails has no score: it
is counted separately and never as a 0.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Sequence

from jaxrl_sql.runtime.progress import ProgressCallback, no_progress
from jaxrl_sql.text2sql.env.dialect import runnable_sql
from jaxrl_sql.text2sql.env.executor import RULE_NAMES
from jaxrl_sql.text2sql.env.ports import SqlExecutor, SqlOutcome
from jaxrl_sql.text2sql.env.verdicts import execute_all, is_verdict
from jaxrl_sql.text2sql.evals.compare import ComparisonResult, compare, comparison_of
from jaxrl_sql.text2sql.evals.differences import EXACT, with_reasons
from jaxrl_sql.text2sql.evals.efficiency import RUNS, SPEED_RULES, speed_score
from jaxrl_sql.text2sql.evals.verdict import Verdict
from jaxrl_sql.types import Example, Fields, InputError, Record

RULES = (*RULE_NAMES, "suite", *SPEED_RULES)
"""All rules: those of the executor, those of speed, and `suite`: `test_suite` on all databases of a suite."""

RULES_WITH_SCORER = ("spider2", "ehrsql", "ehrsql_2022", "defog")
"""Rules of benchmarks whose golds fit only their own scorer, so that other rules are uninformative."""


def score_predictions(
    executor: SqlExecutor,
    examples: Sequence[Example],
    sqls: Sequence[str | None],
    rules: Sequence[str] = ("bird",),
    *,
    options: Fields | None = None,
    timer: SqlExecutor | None = None,
    timed_runs: int = RUNS,
    on_progress: ProgressCallback = no_progress,
) -> list[Verdict]:
    """Score `sqls[i]` against the golds of `examples[i]` by each rule and return a verdict per question, in order.

    SQL of another dialect is translated first; a parse failure is a `syntax_error`. With two or more binary rules,
    verdicts have `reasons`. `options` of the comparison apply to all questions:

    - `surplus_columns` (`ex_b`): a prediction has fewer additional columns than this; None: any number.
    - `row_slack` and `drop_duplicates` (`paverl` and `ex_b`): 30 and True by default.
    - `strip_distinct`: remove DISTINCT from both queries before they run.
    - `ordered` (`test_suite`): override whether the gold's text requires an order.
    - `asks_for_order` (`defog`): the question requires an order.

    `r_ves` and `r_ves_alternate` each run right answers `timed_runs` times on `timer` (see `timing_executor`).
    `on_progress` is called with the number of judged questions. Raises InputError for an unknown rule or option, and
    for these two rules without `timer`.
    """
    check_rules(rules)
    speeds = [rule for rule in SPEED_RULES if rule in rules]
    if speeds and timer is None:
        raise InputError(f"{speeds[0]} measures time: score_predictions(…, timer=timing_executor(executor))")
    ready = [runnable_sql(sql, example) if sql else None for example, sql in zip(examples, sqls, strict=True)]
    compared = [rule for rule in RULE_NAMES if rule in rules]
    explains = sum(rule in (*EXACT, "suite") for rule in rules) > 1
    # Reasons need the scores of all exact rules; R-VES needs that of `bird`.
    others = EXACT if explains else ("bird",) if speeds or not compared else ()
    rule_names = list(dict.fromkeys((*compared, *others)))
    on_one = [i for i, example in enumerate(examples) if example.answerable]
    items = [comparison_of(examples[i], ready[i], options) for i in on_one]
    verdicts: list[Verdict] = [Verdict(example.uid, sql, "no_sql") for example, sql in zip(examples, sqls, strict=True)]
    for i, answer in zip(on_one, compare(executor, items, rule_names, on_progress), strict=True):
        verdicts[i] = _verdict(examples[i], sqls[i], ready[i], answer, rule_names)
    for i, verdict in _unanswerable(executor, examples, sqls, ready, compared):
        verdicts[i] = verdict
    on_progress(len(examples))
    if "suite" in rules:
        verdicts = _with_suites(executor, examples, ready, verdicts, options)
    if explains:
        verdicts = with_reasons(executor, examples, verdicts, options)
    for rule in speeds:
        assert timer is not None
        verdicts = _with_speeds(rule, timer, examples, ready, verdicts, timed_runs)
    unrequested = set(rule_names) - set(rules)
    return [_without(verdict, unrequested) for verdict in verdicts] if unrequested else verdicts


def check_rules(rules: Sequence[str]) -> None:
    """Raise InputError for an unknown rule, or if there are no rules."""
    unknown = [rule for rule in rules if rule not in RULES]
    if unknown or not rules:
        raise InputError(f"rules {', '.join(map(repr, unknown)) or 'are missing'}: there are {', '.join(RULES)}")


def _verdict(
    example: Example, sql: str | None, ready: str | None, answer: ComparisonResult, rules: Sequence[str]
) -> Verdict:
    row = answer.row
    is_untranslated = bool(sql) and ready is None
    is_judged = is_untranslated or is_verdict(row.pred_status, row.stop)
    scores = {rule: row.value(rule) for rule in rules} if row.gold_status == "ok" and is_judged else {}
    return Verdict(
        example.uid,
        sql,
        "syntax_error" if is_untranslated else row.pred_status,
        row.gold_status,
        scores,
        row.stop,
        answer.pred_ms,
        answer.gold_ms,
        pred_rows=answer.pred_rows,
        gold_rows=answer.gold_rows,
    )


def _unanswerable(
    executor: SqlExecutor,
    examples: Sequence[Example],
    sqls: Sequence[str | None],
    ready: Sequence[str | None],
    rules: Sequence[str],
) -> list[tuple[int, Verdict]]:
    """Judge unanswerable questions: no SQL is right by every rule, and any SQL is only executed."""
    unanswerable = [i for i, example in enumerate(examples) if not example.answerable]
    outcomes = execute_all(executor, [(examples[i].database, ready[i] or "") for i in unanswerable])
    return [
        (i, _without_gold(examples[i], sqls[i], ready[i], outcome, rules))
        for i, outcome in zip(unanswerable, outcomes, strict=True)
    ]


def _without_gold(
    example: Example, sql: str | None, ready: str | None, outcome: SqlOutcome, rules: Sequence[str]
) -> Verdict:
    status = "syntax_error" if sql and ready is None else outcome.status
    right = float(status == "no_sql")
    scores = dict.fromkeys(rules, right) if is_verdict(status, outcome.stopped_by) else {}
    return Verdict(
        example.uid,
        sql,
        status,
        scores=scores,
        stop=outcome.stopped_by or "",
        pred_ms=outcome.elapsed_ms,
        pred_rows=outcome.row_count,
    )


def _with_suites(
    executor: SqlExecutor,
    examples: Sequence[Example],
    ready: Sequence[str | None],
    verdicts: Sequence[Verdict],
    options: Fields | None,
) -> list[Verdict]:
    """Add the `suite` score over all databases of a suite, if it exists and the gold ran on the first database."""
    with_suite = [
        i
        for i, (example, verdict) in enumerate(zip(examples, verdicts, strict=True))
        if example.suite and example.answerable and verdict.gold_ok and verdict.is_judged
    ]
    items = [comparison_of(examples[i], ready[i], options)._replace(databases=[*examples[i].suite]) for i in with_suite]
    scored = list(verdicts)
    for i, answer in zip(with_suite, compare(executor, items, ("test_suite",)), strict=True):
        row = answer.row
        changes: Record = {"suite_gold_status": row.gold_status}
        if row.gold_status == "ok" and is_verdict(row.pred_status, row.stop):
            changes["scores"] = {**scored[i].scores, "suite": row.value("test_suite")}
        elif row.gold_status == "ok":
            changes |= {"status": row.pred_status, "stop": row.stop, "scores": {}}
        scored[i] = dataclasses.replace(scored[i], **changes)
    return scored


def _with_speeds(
    rule: str,
    timer: SqlExecutor,
    examples: Sequence[Example],
    ready: Sequence[str | None],
    verdicts: Sequence[Verdict],
    runs: int,
) -> list[Verdict]:
    scored = []
    for example, sql, verdict in zip(examples, ready, verdicts, strict=True):
        # A gold table has no execution time to compare with.
        if verdict.gold_ok and verdict.is_judged and example.answerable and not example.gold_tables:
            golds = [example.gold_sql, *example.other_golds]
            is_right = sql is not None and verdict.is_right("bird")
            score = 0.0
            if is_right:
                alternates = rule == "r_ves_alternate"
                score = speed_score(timer, example.database, sql or "", golds, runs, alternates=alternates)
            scored.append(dataclasses.replace(verdict, scores={**verdict.scores, rule: score}))
        else:
            scored.append(verdict)
    return scored


def _without(verdict: Verdict, rules: set[str]) -> Verdict:
    scores = {rule: value for rule, value in verdict.scores.items() if rule not in rules}
    return dataclasses.replace(verdict, scores=scores)
