"""The numbers of an evaluation: each rule with its interval, by group of questions, and what went wrong beside.

Two shares are told apart. `<rule>` is over the questions that the rule could be applied to: their gold ran. `accuracy`
is the benchmark's own rule over all questions, the number that its leaderboard would give: one whose gold fails cannot
be answered right there. They differ only where golds fail, and then `gold_failures` is not 0.
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

# Golds that are stopped, by whichever bound, say something of the limits; the others are wrong.
_STOPPED = ("timeout", "cancelled", "crashed")


@dataclass(frozen=True, slots=True)
class Share:
    """The mean of `count` values that add up to `total`, with the bounds of its 95 % interval."""

    total: float
    count: int
    low: float = 0.0
    high: float = 0.0

    @property
    def mean(self) -> float:
        """Return total / count, 0 of nothing."""
        return self.total / self.count if self.count else 0.0


@dataclass(frozen=True, slots=True)
class Group:
    """A group of `count` questions, and the share of each rule that could be applied to any of them."""

    count: int
    shares: Mapping[str, Share]


@dataclass(frozen=True, slots=True)
class Summary:
    """The numbers of an evaluation of `count` questions.

    `scores` has a share a rule; `groups` those of each group of questions, named `hardness/easy`, `database/car_1`,
    `feature/join`. `statuses` counts predictions by how they ended, `gold_statuses` golds; `stopped` counts what the
    clock stopped even when it was tried again alone. `reasons` lists the questions whose verdict hangs on something, by
    what it is, `failed_golds` those whose gold did not run, with its status. `own` is the benchmark's own rule.
    `reliability`, where some questions have no answer, is EHRSQL's score for each cost of an error; `abstention` are
    shares of its scorer of 2022. `unjudged` counts predictions without a verdict, for example after a database
    error: the accuracy leaves them out.
    """

    own: str
    count: int
    scores: Mapping[str, Share]
    groups: Mapping[str, Group]
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
        """Return the benchmark's own rule over all questions with a verdict, as its leaderboard counts."""
        own = self.scores.get(self.own, Share(0.0, 0))
        return Share(own.total, self.count - self.unjudged)

    @property
    def gold_failures(self) -> int:
        """Return how many golds did not run, the stopped ones included."""
        return sum(n for name, n in self.gold_statuses.items() if name != "ok")

    @property
    def gold_timeouts(self) -> int:
        """Return how many golds were stopped."""
        return sum(n for name, n in self.gold_statuses.items() if name in _STOPPED)

    def metrics(self) -> dict[str, float]:
        """Return the numbers by name, for a metrics file."""
        numbers = {"accuracy": self.accuracy.mean} if self.own in self.scores else {}
        for rule, share in self.scores.items():
            numbers |= {rule: share.mean, f"{rule}/low": share.low, f"{rule}/high": share.high}
            numbers[f"{rule}/count"] = float(share.count)
        numbers |= {
            "count": float(self.count),
            "valid": self.statuses.get("ok", 0) / self.count if self.count else 0.0,
            "gold_failures": float(self.gold_failures),
            "gold_timeouts": float(self.gold_timeouts),
            "suite_gold_failures": float(self.suite_gold_failures),
            "stopped_by_clock": float(self.stopped),
            "unjudged": float(self.unjudged),
        }
        numbers |= {f"status/{name}": float(n) for name, n in self.statuses.items()}
        numbers |= {f"gold_status/{name}": float(n) for name, n in self.gold_statuses.items()}
        for name, group in self.groups.items():
            numbers[f"count/{name}"] = float(group.count)
            numbers |= {f"{rule}/{name}": share.mean for rule, share in group.shares.items()}
        numbers |= {f"reliability/{cost}": score for cost, score in self.reliability.items()}
        numbers |= {f"abstention/{name}": share for name, share in self.abstention.items()}
        numbers |= {f"sensitive/{name}": float(len(uids)) for name, uids in self.reasons.items()}
        return numbers


def summarize(
    examples: Sequence[Example],
    verdicts: Sequence[Verdict],
    own: str = "bird",
) -> Summary:
    """Count verdicts, `verdicts[i]` of `examples[i]`; `own` is the benchmark's own rule.

    Levels of difficulty are the benchmark's labels; where it has none, Spider's, counted in the gold. Groups come in
    the order in which they first occur.
    """
    pairs = list(zip(examples, verdicts, strict=True))
    judged = [pair for pair in pairs if pair[1].is_judged]
    rules = list(dict.fromkeys(rule for one in verdicts for rule in one.scores))
    members: dict[str, list[int]] = {}
    for i, (example, _) in enumerate(pairs):
        for name in group_names(example):
            members.setdefault(name, []).append(i)
    reasons = {name: tuple(one.uid for one in verdicts if name in one.reasons) for name in REASONS}
    return Summary(
        own=own,
        count=len(pairs),
        scores={rule: _share(pairs, rule) for rule in rules},
        groups={name: _group([pairs[i] for i in found], rules) for name, found in members.items()},
        statuses=dict(Counter(one.status for one in verdicts)),
        gold_statuses=dict(Counter(one.gold_status for one in verdicts)),
        suite_gold_failures=sum(one.suite_gold_status not in ("", "ok") for one in verdicts),
        stopped=sum(one.stop == "wall" for one in verdicts),
        reasons=reasons,
        failed_golds=tuple((one.uid, one.gold_status) for one in verdicts if not one.gold_ok),
        reliability=_reliability(judged, own),
        abstention=_abstention(judged) if own == "ehrsql_2022" else {},
        unjudged=sum(not verdict.is_judged for verdict in verdicts),
    )


def validation_metrics(
    examples: Sequence[Example], verdicts: Sequence[Verdict], unasked: int = 0, rule: str = "bird"
) -> dict[str, float]:
    """Return the numbers that training logs of verdicts by a rule, shares of all questions; a graded rule's are means.

    A question whose gold fails counts as wrong (the set is what it is), and so do `unasked` more, whose prompts are too
    long. One without a verdict, as where the database failed, is left out (`unjudged`).
    Difficulties are the benchmark's labels, in the order in which they first occur. Raises InputError where no
    prediction has a verdict.
    """
    statuses = Counter(one.status for one in verdicts)
    pairs = [pair for pair in zip(examples, verdicts, strict=True) if pair[1].is_judged]
    if verdicts and not pairs:
        raise InputError("evaluation: no answer has a verdict, as no database can be read; continue when they can be")
    n_unjudged = len(verdicts) - len(pairs)
    examples, verdicts = [example for example, _ in pairs], [one for _, one in pairs]
    scores = [verdict.scores.get(rule, 0.0) for verdict in verdicts]
    count = len(verdicts) + unasked
    if unasked:
        statuses[NOT_ASKED] += unasked
    levels: dict[str, list[float]] = {}
    for example, score in zip(examples, scores, strict=True):
        if example.difficulty:
            levels.setdefault(example.difficulty, []).append(score)
    numbers = {
        "accuracy": sum(scores) / max(count, 1),
        "correct": float(sum(one.is_right(rule) for one in verdicts)),
        "count": float(count),
        "valid": statuses["ok"] / max(count, 1),
        "gold_failures": float(sum(not one.gold_ok for one in verdicts)),
    }
    numbers |= {"unjudged": float(n_unjudged)} if n_unjudged else {}
    numbers |= {f"status/{name}": float(n) for name, n in statuses.items()}
    for name, found in levels.items():
        numbers |= {f"accuracy/{name}": sum(found) / len(found), f"count/{name}": float(len(found))}
    return numbers


def group_names(example: Example) -> list[str]:
    """Return the groups that a question is counted in."""
    gold = example.gold_sql if example.answerable else ""
    hardness = example.difficulty or (spider_level(gold, example.gold_dialect) if gold else "")
    features = features_of(gold, example.gold_dialect) if gold else ()
    names = [f"hardness/{hardness}"] if hardness else []
    return [*names, f"database/{example.db_id}", *(f"feature/{name}" for name in features)]


def _share(pairs: Sequence[tuple[Example, Verdict]], rule: str) -> Share:
    scored = [(example.db_id, one.scores[rule]) for example, one in pairs if rule in one.scores]
    values = np.array([value for _, value in scored])
    low, high = share_interval(values, [name for name, _ in scored])
    return Share(float(values.sum()), len(scored), low, high)


def _reliability(pairs: Sequence[tuple[Example, Verdict]], own: str) -> dict[str, float]:
    """Return EHRSQL's reliability scores RS(0), RS(5), RS(10) and RS(N), N the number of questions (Lee et al. 2024).

    A right answer earns 1, and so does none where there is none; no answer where there is one earns 0, and whatever is
    wrong costs 0, 5, 10 or N. No answer is right where the gold fails: its scorer takes that for an error that no
    prediction equals. Where all questions have answers it says nothing.
    """
    if all(example.answerable for example, _ in pairs) or not any(own in one.scores for _, one in pairs):
        return {}
    right = sum(one.is_right(own) for _, one in pairs)
    silent = sum(one.status == "no_sql" and not one.is_right(own) for _, one in pairs)
    wrong, count = len(pairs) - right - silent, len(pairs)
    costs = {"0": 0, "5": 5, "10": 10, "N": count}
    return {name: (right - cost * wrong) / count for name, cost in costs.items()}


def _abstention(pairs: Sequence[tuple[Example, Verdict]]) -> dict[str, float]:
    """Return precision, recall and F1 of answering at all, and of right answers, as EHRSQL's scorer of 2022 has them.

    Precision is over the questions that got SQL, recall over those that have an answer (Lee et al. 2022).
    """
    answered = sum(verdict.status != "no_sql" for _, verdict in pairs)
    askable = [verdict for example, verdict in pairs if example.answerable]
    shares: dict[str, float] = {}
    for name, count in (
        ("ans", sum(verdict.status != "no_sql" for verdict in askable)),
        ("exec", sum(verdict.is_right("ehrsql_2022") for verdict in askable)),
    ):
        shares[f"precision_{name}"] = count / max(answered, 1)
        shares[f"recall_{name}"] = count / max(len(askable), 1)
        # The harmonic mean of count / answered and count / askable.
        shares[f"f1_{name}"] = 2 * count / max(answered + len(askable), 1)
    return shares


def _group(pairs: Sequence[tuple[Example, Verdict]], rules: Sequence[str]) -> Group:
    """Return a group's shares without intervals: within one they would say little."""
    found = {rule: [one.scores[rule] for _, one in pairs if rule in one.scores] for rule in rules}
    return Group(len(pairs), {rule: Share(sum(values), len(values)) for rule, values in found.items() if values})
