"""Dialogues of several turns: how many turns right answers took, and how the database was asked on the way."""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence

from jaxrl_sql.text2sql.evals.verdict import Verdict
from jaxrl_sql.text2sql.rewards.skyrl_sql import conduct, read_skyrl_sql
from jaxrl_sql.types import Response


def turns_taken(response: Response) -> int:
    """Return how often the policy had its turn; a text is taken apart at its observations."""
    if isinstance(response, str):
        return response.count("</observation>") + 1
    roles = [role for role, _ in response]
    starts = (role == "assistant" != before for before, role in zip(["", *roles], roles, strict=False))
    return sum(starts)


def dialogue_metrics(responses: Sequence[Response], verdicts: Sequence[Verdict], rule: str) -> dict[str, float]:
    """Return numbers by name of the dialogues that `verdicts` judge.

    `<rule>/turns/<n>` is the share of right answers among those of n turns, and `count/turns/<n>` their number; what
    has no score by the rule is not among them. Of the behaviour, means a dialogue: `turns/mean`,
    `dialogue/queries`, `dialogue/lookups` (queries that ask for the schema, by PRAGMA or in sqlite_master),
    `dialogue/repeated` (asked before in the same dialogue); and shares of dialogues: `dialogue/unprobed` (a solution
    that was never run as a query before) and `dialogue/unsolved` (no solution).
    """
    pairs = list(zip(responses, verdicts, strict=True))
    taken = [turns_taken(response) for response, _ in pairs]
    scored = [(n, one.scores[rule]) for n, (_, one) in zip(taken, pairs, strict=True) if rule in one.scores]
    counts = Counter(n for n, _ in scored)
    numbers: dict[str, float] = {}
    for n in sorted(counts):
        numbers[f"{rule}/turns/{n}"] = sum(score for turns, score in scored if turns == n) / counts[n]
        numbers[f"count/turns/{n}"] = float(counts[n])
    if not pairs:
        return numbers
    readings = [read_skyrl_sql(response) for response, _ in pairs]
    totals: Counter[str] = Counter()
    for reading in readings:
        totals.update(conduct(reading))
        totals["unsolved"] += reading.sql is None
    names = ("queries", "lookups", "repeated", "unprobed", "unsolved")
    numbers |= {f"dialogue/{name}": totals[name] / len(pairs) for name in names}
    return numbers | {"turns/mean": sum(taken) / len(pairs)}
