"""Summarize an evaluation: scores by rule with intervals, by group of questions, and counts of failures.

A gold is a question's reference query. A rule compares a prediction's result with the gold's: `bird` compares the rows
as sets, as BIRD's script does. A verdict is the outcome of the comparison for one question. There are two kinds of
shares. `<rule>` is over the questions whose gold ran. `accuracy` is the benchmark's own rule over all questions, as on
its leaderboard, where a question whose gold fails counts as wrong. They differ only if `gold_failures` is not 0.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field

import numpy as np

from jaxrl_sql.text2sql.evals.differences import REASONS
from jaxrl_sql.text2sql.evals.features import features_of
from jaxrl_sql.text2sql.evals.hardness import spider_level
from jaxrl_sql.text2sql.evals.interval import share_interval
from jaxrl_sql.text2sql.evals.verdict import NOT_ASKED, Verdict
from jaxrl_sql.types import Example, InputError

# Golds with these statuses were interrupted; golds with other statuses are wrong.
_INTERRUPTED = ("timeout", "cancelled", "crashed")


@dataclass(frozen=True, slots=True)
class Share:
    """The mean of `count` values with sum `total`; `low` and `high` bound its 95 % interval."""

    total: float
    count: int
    low: float = 0.0
    high: float = 0.0

    @property
    def mean(self) -> float:
        """Return total / count, or 0 if empty."""
        return self.total / self.count if self.count else 0.0


@dataclass(frozen=True, slots=True)
class GroupShares:
    """A group of `count` questions, with the share of each rule that applies to any of them."""

    count: int
    shares: Mapping[str, Share]


@dataclass(frozen=True, slots=True)
class Summary:
    """The summary of an evaluation of `count` questions.

    `scores` has a share per rule; `groups` has shares per group of questions, such as `hardness/easy`, `database/car_1`
    and `feature/join`. `statuses` and `gold_statuses` count predictions and golds by status. `stopped` counts
    predictions that hit the time limit even when retried alone. `suite_gold_failures` counts golds that failed on
    another database of the question's suite (databases of one schema with other rows). `reasons` lists, by reason
    (`differences.REASONS`), the questions about which rules disagree; the metrics `sensitive/<reason>` count them.
    `failed_golds` lists questions with a failed gold and its status. `own_rule` is the benchmark's rule. `reliability`
    has EHRSQL's score for each cost of a wrong answer, if some questions are unanswerable; `abstention` has the metrics
    of EHRSQL's scorer of 2022. `unjudged` counts predictions without a verdict, for example after a database error; the
    accuracy omits them.
    """

    own_rule: str
    count: int
    scores: Mapping[str, Share]
    groups: Mapping[str, GroupShares]
    statuses: Mapping[str, int]
    gold_statuses: Mapping[str, int]
    suite_gold_failures: int
    stopped: int
    reasons: Mapping[str, tuple[str, ...]]
    failed_golds: tuple[tuple[str, str], ...] = ()
    reliability: Mapping[str, float] = field(default_factory=dict)
    abstention: Mapping[str, float] = field(default_factory=dict)
    unjudged: int = 0

    @property
    def accuracy(self) -> Share:
        """Return the score by the benchmark's own rule over all questions with a verdict, as on its leaderboard."""
        share = self.scores.get(self.own_rule, Share(0.0, 0))
        return Share(share.total, self.count - self.unjudged)

    @property
    def gold_failures(self) -> int:
        """Return the number of golds that failed, including interrupted ones."""
        return sum(n for name, n in self.gold_statuses.items() if name != "ok")

    @property
    def gold_interrupted(self) -> int:
        """Return the number of golds that timed out, were cancelled or crashed."""
        return sum(n for name, n in self.gold_statuses.items() if name in _INTERRUPTED)

    def metrics(self) -> dict[str, float]:
        """Return the metrics by name, for a metrics file."""
        metrics = {"accuracy": self.accuracy.mean} if self.own_rule in self.scores else {}
        for rule, share in self.scores.items():
            metrics |= {rule: share.mean, f"{rule}/low": share.low, f"{rule}/high": share.high}
            metrics[f"{rule}/count"] = float(share.count)
        metrics |= {
            "count": float(self.count),
            "valid": self.statuses.get("ok", 0) / self.count if self.count else 0.0,
            "gold_failures": float(self.gold_failures),
            "gold_timeouts": float(self.gold_interrupted),
            "suite_gold_failures": float(self.suite_gold_failures),
            "stopped_by_clock": float(self.stopped),
            "unjudged": float(self.unjudged),
        }
        metrics |= {f"status/{name}": float(n) for name, n in self.statuses.items()}
        metrics |= {f"gold_status/{name}": float(n) for name, n in self.gold_statuses.items()}
        for name, group in self.groups.items():
            metrics[f"count/{name}"] = float(group.count)
            metrics |= {f"{rule}/{name}": share.mean for rule, share in group.shares.items()}
        metrics |= {f"reliability/{cost}": score for cost, score in self.reliability.items()}
        metrics |= {f"abstention/{name}": share for name, share in self.abstention.items()}
        metrics |= {f"sensitive/{name}": float(len(uids)) for name, uids in self.reasons.items()}
        return metrics


def summarize(
    examples: Sequence[Example],
    verdicts: Sequence[Verdict],
    own_rule: str = "bird",
) -> Summary:
    """Summarize verdicts, `verdicts[i]` of `examples[i]`; `own_rule` is the benchmark's own rule.

    Difficulty levels are the benchmark's labels, or Spider's levels of the gold if it has none. Groups are in order of
    first occurrence.
    """
    pairs = list(zip(examples, verdicts, strict=True))
    judged = [pair for pair in pairs if pair[1].is_judged]
    rules = list(dict.fromkeys(rule for verdict in verdicts for rule in verdict.scores))
    members: dict[str, list[int]] = {}
    for i, (example, _) in enumerate(pairs):
        for name in group_names(example):
            members.setdefault(name, []).append(i)
    reasons = {name: tuple(verdict.uid for verdict in verdicts if name in verdict.reasons) for name in REASONS}
    return Summary(
        own_rule=own_rule,
        count=len(pairs),
        scores={rule: _share(pairs, rule) for rule in rules},
        groups={name: _group([pairs[i] for i in indices], rules) for name, indices in members.items()},
        statuses=dict(Counter(verdict.status for verdict in verdicts)),
        gold_statuses=dict(Counter(verdict.gold_status for verdict in verdicts)),
        suite_gold_failures=sum(verdict.suite_gold_status not in ("", "ok") for verdict in verdicts),
        stopped=sum(verdict.stop == "wall" for verdict in verdicts),
        reasons=reasons,
        failed_golds=tuple((verdict.uid, verdict.gold_status) for verdict in verdicts if not verdict.gold_ok),
        reliability=_reliability(judged, own_rule),
        abstention=_abstention(judged) if own_rule == "ehrsql_2022" else {},
        unjudged=sum(not verdict.is_judged for verdict in verdicts),
    )


def validation_metrics(
    examples: Sequence[Example], verdicts: Sequence[Verdict], unasked: int = 0, rule: str = "bird"
) -> dict[str, float]:
    """Return the validation metrics that training logs, by one rule.

    The accuracy is the share of right answers, or the mean score if the rule has values between 0 and 1.

    Questions whose gold fails count as wrong, and so do `unasked` further questions, whose prompts are too long.
    Questions without a verdict, for example after a database error, are omitted (`unjudged`). Difficulties are the
    benchmark's labels, in order of first occurrence. Raises InputError if no prediction has a verdict.
    """
    statuses = Counter(verdict.status for verdict in verdicts)
    pairs = [pair for pair in zip(examples, verdicts, strict=True) if pair[1].is_judged]
    if verdicts and not pairs:
        raise InputError("evaluation: no answer has a verdict, as no database can be read; continue when they can be")
    n_unjudged = len(verdicts) - len(pairs)
    examples, verdicts = [example for example, _ in pairs], [verdict for _, verdict in pairs]
    scores = [verdict.scores.get(rule, 0.0) for verdict in verdicts]
    count = len(verdicts) + unasked
    if unasked:
        statuses[NOT_ASKED] += unasked
    levels: dict[str, list[float]] = {}
    for example, score in zip(examples, scores, strict=True):
        if example.difficulty:
            levels.setdefault(example.difficulty, []).append(score)
    metrics = {
        "accuracy": sum(scores) / max(count, 1),
        "correct": float(sum(verdict.is_right(rule) for verdict in verdicts)),
        "count": float(count),
        "valid": statuses["ok"] / max(count, 1),
        "gold_failures": float(sum(not verdict.gold_ok for verdict in verdicts)),
    }
    metrics |= {"unjudged": float(n_unjudged)} if n_unjudged else {}
    metrics |= {f"status/{name}": float(n) for name, n in statuses.items()}
    for name, level_scores in levels.items():
        metrics |= {
            f"accuracy/{name}": sum(level_scores) / len(level_scores),
            f"count/{name}": float(len(level_scores)),
        }
    return metrics


def group_names(example: Example) -> list[str]:
    """Return the names of a question's groups: its difficulty, its database, and the SQL features of its gold."""
    gold = example.gold_sql if example.answerable else ""
    hardness = example.difficulty or (spider_level(gold, example.gold_dialect) if gold else "")
    features = features_of(gold, example.gold_dialect) if gold else ()
    names = [f"hardness/{hardness}"] if hardness else []
    return [*names, f"database/{example.db_id}", *(f"feature/{name}" for name in features)]


def _share(pairs: Sequence[tuple[Example, Verdict]], rule: str) -> Share:
    scored = [(example.db_id, verdict.scores[rule]) for example, verdict in pairs if rule in verdict.scores]
    values = np.array([value for _, value in scored])
    low, high = share_interval(values, [name for name, _ in scored])
    return Share(float(values.sum()), len(scored), low, high)


def _reliability(pairs: Sequence[tuple[Example, Verdict]], own_rule: str) -> dict[str, float]:
    """Return EHRSQL's reliability scores RS(0), RS(5), RS(10) and RS(N), N the number of questions (Lee et al. 2024).

    A right answer earns 1, and so does abstaining on an unanswerable question. Abstaining on an answerable question
    earns 0, and any wrong answer costs 0, 5, 10 or N. If the gold fails, every answer is wrong, as in EHRSQL's scorer.
    Empty if all questions are answerable.
    """
    if all(example.answerable for example, _ in pairs) or not any(own_rule in verdict.scores for _, verdict in pairs):
        return {}
    right = sum(verdict.is_right(own_rule) for _, verdict in pairs)
    abstained = sum(verdict.status == "no_sql" and not verdict.is_right(own_rule) for _, verdict in pairs)
    wrong, count = len(pairs) - right - abstained, len(pairs)
    costs = {"0": 0, "5": 5, "10": 10, "N": count}
    return {name: (right - cost * wrong) / count for name, cost in costs.items()}


def _abstention(pairs: Sequence[tuple[Example, Verdict]]) -> dict[str, float]:
    """Return precision, recall and F1 of answering at all and of right answers, as in EHRSQL's 2022 scorer.

    Precision is over the questions with predicted SQL, recall over answerable questions (Lee et al. 2022).
    """
    answered = sum(verdict.status != "no_sql" for _, verdict in pairs)
    answerable = [verdict for example, verdict in pairs if example.answerable]
    shares: dict[str, float] = {}
    for name, count in (
        ("ans", sum(verdict.status != "no_sql" for verdict in answerable)),
        ("exec", sum(verdict.is_right("ehrsql_2022") for verdict in answerable)),
    ):
        shares[f"precision_{name}"] = count / max(answered, 1)
        shares[f"recall_{name}"] = count / max(len(answerable), 1)
        # The harmonic mean of count / answered and count / answerable.
        shares[f"f1_{name}"] = 2 * count / max(answered + len(answerable), 1)
    return shares


def _group(pairs: Sequence[tuple[Example, Verdict]], rules: Sequence[str]) -> GroupShares:
    """Return a group's shares, without intervals, which would be too wide to be useful."""
    scores = {rule: [verdict.scores[rule] for _, verdict in pairs if rule in verdict.scores] for rule in rules}
    return GroupShares(len(pairs), {rule: Share(sum(values), len(values)) for rule, values in scores.items() if values})
