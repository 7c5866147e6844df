"""Metrics of multi-turn dialogues: accuracy by number of turns, and use of database queries."""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence

from jaxrl_sql.text2sql.evals.verdict import Verdict
from jaxrl_sql.text2sql.rewards.skyrl_sql import count_behaviour, read_skyrl_sql
from jaxrl_sql.types import Response


def turns_taken(response: Response) -> int:
    """Return the number of the policy's turns; in a text, each observation ends a turn."""
    if isinstance(response, str):
        return response.count("</observation>") + 1
    roles = [role for role, _ in response]
    starts = (role == "assistant" != before for before, role in zip(["", *roles], roles, strict=False))
    return sum(starts)


def dialogue_metrics(responses: Sequence[Response], verdicts: Sequence[Verdict], rule: str) -> dict[str, float]:
    """Return metrics of the dialogues that `verdicts` judge.

    `<rule>/turns/<n>` is the accuracy of answers with n turns, and `count/turns/<n>` their number, without answers
    that have no score by the rule. Means per dialogue: `turns/mean`, `dialogue/queries`, `dialogue/lookups` (schema
    queries by PRAGMA or sqlite_master) and `dialogue/repeated` (queries repeated within the dialogue). Shares of
    dialogues: `dialogue/unprobed` (the solution was never run as a query before) and `dialogue/unsolved` (no solution).
    """
    pairs = list(zip(responses, verdicts, strict=True))
    turn_counts = [turns_taken(response) for response, _ in pairs]
    scored = [
        (n, verdict.scores[rule]) for n, (_, verdict) in zip(turn_counts, pairs, strict=True) if rule in verdict.scores
    ]
    counts = Counter(n for n, _ in scored)
    metrics: dict[str, float] = {}
    for n in sorted(counts):
        metrics[f"{rule}/turns/{n}"] = sum(score for turns, score in scored if turns == n) / counts[n]
        metrics[f"count/turns/{n}"] = float(counts[n])
    if not pairs:
        return metrics
    parsed_responses = [read_skyrl_sql(response) for response, _ in pairs]
    totals: Counter[str] = Counter()
    for parsed in parsed_responses:
        totals.update(count_behaviour(parsed))
        totals["unsolved"] += parsed.sql is None
    names = ("queries", "lookups", "repeated", "unprobed", "unsolved")
    metrics |= {f"dialogue/{name}": totals[name] / len(pairs) for name in names}
    return metrics | {"turns/mean": sum(turn_counts) / len(pairs)}
