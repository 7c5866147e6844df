"""Score predictions against golds by several rules: those of the benchmarks' own evaluations, and others.

A gold is a question's reference query or result. A rule compares the rows of a prediction with the gold's:

- `bird` compares them as sets, as BIRD's script does.
- `test_suite` compares them as Spider's script does: columns may be in another order, and the order of rows counts if
  the gold has ORDER BY.
- `suite` is `test_suite` on each database of the question's suite: databases of one schema with other rows.
- `docs/reference/rules.md` describes the other rules.

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
"""All rules: those of the executor, `suite`, and those that measure speed."""

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

    SQL in another dialect is translated first; if it does not parse, its status is `syntax_error`. With two or more
    rules whose value is 0 or 1, verdicts have `reasons` for disagreements. `options` of the comparison apply to all
    questions:

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
    speed_rules = [rule for rule in SPEED_RULES if rule in rules]
    if speed_rules and timer is None:
        raise InputError(f"{speed_rules[0]} measures time: score_predictions(…, timer=timing_executor(executor))")
    runnable = [runnable_sql(sql, example) if sql else None for example, sql in zip(examples, sqls, strict=True)]
    compared = [rule for rule in RULE_NAMES if rule in rules]
    needs_reasons = sum(rule in (*EXACT, "suite") for rule in rules) > 1
    # Reasons need the scores of all exact rules. Rules of speed need that of `bird`, and the executor at least one
    # rule.
    others = EXACT if needs_reasons else ("bird",) if speed_rules or not compared else ()
    rule_names = list(dict.fromkeys((*compared, *others)))
    answerable = [i for i, example in enumerate(examples) if example.answerable]
    items = [comparison_of(examples[i], runnable[i], options) for i in answerable]
    verdicts: list[Verdict] = [Verdict(example.uid, sql, "no_sql") for example, sql in zip(examples, sqls, strict=True)]
    for i, answer in zip(answerable, compare(executor, items, rule_names, on_progress), strict=True):
        verdicts[i] = _verdict(examples[i], sqls[i], runnable[i], answer, rule_names)
    for i, verdict in _unanswerable_verdicts(executor, examples, sqls, runnable, compared):
        verdicts[i] = verdict
    on_progress(len(examples))
    if "suite" in rules:
        verdicts = _with_suites(executor, examples, runnable, verdicts, options)
    if needs_reasons:
        verdicts = with_reasons(executor, examples, verdicts, options)
    for rule in speed_rules:
        assert timer is not None
        verdicts = _with_speed(rule, timer, examples, runnable, verdicts, timed_runs)
    unrequested = set(rule_names) - set(rules)
    return [_without_rules(verdict, unrequested) for verdict in verdicts] if unrequested else verdicts


def check_rules(rules: Sequence[str]) -> None:
    """Raise InputError for an unknown rule, or if there are no rules."""
    unknown = [rule for rule in rules if rule not in RULES]
    if unknown or not rules:
        raise InputError(f"rules {', '.join(map(repr, unknown)) or 'are missing'}: there are {', '.join(RULES)}")


def _verdict(
    example: Example, sql: str | None, runnable: str | None, answer: ComparisonResult, rules: Sequence[str]
) -> Verdict:
    """Return the verdict of a comparison; `runnable` is the translated `sql`, None if there is no translation."""
    row = answer.row
    is_untranslated = bool(sql) and runnable is None
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


def _unanswerable_verdicts(
    executor: SqlExecutor,
    examples: Sequence[Example],
    sqls: Sequence[str | None],
    runnable: Sequence[str | None],
    rules: Sequence[str],
) -> list[tuple[int, Verdict]]:
    """Judge unanswerable questions: an answer without SQL is right by every rule, and any SQL is wrong.

    The SQL is executed only for its status.
    """
    unanswerable = [i for i, example in enumerate(examples) if not example.answerable]
    outcomes = execute_all(executor, [(examples[i].database, runnable[i] or "") for i in unanswerable])
    return [
        (i, _unanswerable_verdict(examples[i], sqls[i], runnable[i], outcome, rules))
        for i, outcome in zip(unanswerable, outcomes, strict=True)
    ]


def _unanswerable_verdict(
    example: Example, sql: str | None, runnable: str | None, outcome: SqlOutcome, rules: Sequence[str]
) -> Verdict:
    status = "syntax_error" if sql and runnable is None else outcome.status
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
    runnable: Sequence[str | None],
    verdicts: Sequence[Verdict],
    options: Fields | None,
) -> list[Verdict]:
    """Add the `suite` score over all databases of a suite, if it exists and the gold ran on the first database."""
    with_suite = [
        i
        for i, (example, verdict) in enumerate(zip(examples, verdicts, strict=True))
        if example.suite and example.answerable and verdict.gold_ok and verdict.is_judged
    ]
    items = [
        comparison_of(examples[i], runnable[i], options)._replace(databases=[*examples[i].suite]) for i in with_suite
    ]
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


def _with_speed(
    rule: str,
    timer: SqlExecutor,
    examples: Sequence[Example],
    runnable: Sequence[str | None],
    verdicts: Sequence[Verdict],
    runs: int,
) -> list[Verdict]:
    """Add the score of a rule of speed, which is 0 unless the prediction is right by `bird`."""
    scored = []
    for example, sql, verdict in zip(examples, runnable, verdicts, strict=True):
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


def _without_rules(verdict: Verdict, rules: set[str]) -> Verdict:
    """Return a verdict without the scores of some rules."""
    scores = {rule: value for rule, value in verdict.scores.items() if rule not in rules}
    return dataclasses.replace(verdict, scores=scores)
