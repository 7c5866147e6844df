"""Verbal reinforcement learning: no gradients, the policy judges its own candidates in words (PaVeRL-SQL).

For each question candidates are sampled until there are `candidates` distinct ones that run and return rows, or until
20 times as many attempts were made. Then the same policy reads all candidates of a question in one prompt and scores
each, `rounds` times; the best mean wins, ties are broken at random. Only numbers between the last <scores> tags are
read, and a reply without the right number of them is counted and requested again a bounded number of times.

Any function that answers prompts can serve (`RequestSampler`; `replay` makes one from an engine or an endpoint). The
next request depends on the seed and on the answers alone, so a run whose answers were recorded can be resumed.
"""

from __future__ import annotations

import dataclasses
import random
import re
import zlib
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import NamedTuple

import numpy as np

from jaxrl_sql.rollout.sampling import SamplingParams
from jaxrl_sql.text2sql.env.dialect import normal_form
from jaxrl_sql.text2sql.env.ports import SqlExecutor
from jaxrl_sql.text2sql.env.verdicts import execute_all
from jaxrl_sql.types import InputError, Prompt

CANDIDATES, JUDGE = "candidates", "judge"
ATTEMPTS_EACH = 20
SCORES_END = "</scores>"

_SCORES = re.compile(r"<scores>((?:(?!<scores>).)*?)</scores>", re.DOTALL | re.IGNORECASE)
_NUMBER = re.compile(r"(?<![\w.])[-+]?(?:\d+\.?\d*|\.\d+)(?:[eE][-+]?\d+)?(?![\w.]*\w)")


class SamplingRequest(NamedTuple):
    """`sampling.n` answers to a prompt, for a question's `stage` (CANDIDATES or JUDGE) and the round of it, from 0."""

    uid: str
    stage: str
    round: int
    prompt: str | Prompt
    sampling: SamplingParams


# Requests of one stage and round -> the texts of each, in order; None for one that was not answered.
RequestSampler = Callable[[Sequence[SamplingRequest]], Sequence[Sequence[str | None]]]
# The SQL of an answer, or None when it has none.
ReadSql = Callable[[str], str | None]


class VerbalPolicy(NamedTuple):
    """A policy that answers and judges, with sampling parameters for each role.

    `as_prompt` may put a judge's text through a chat template, whose `shield` marks control tokens in quoted texts.
    """

    ask: RequestSampler
    sampling: SamplingParams
    judge_sampling: SamplingParams
    as_prompt: Callable[[str], str | Prompt] = str
    shield: Callable[[str], str] = str


@dataclass(frozen=True)
class JudgingConfig:
    """Candidates per question, attempts per candidate, and rounds of scoring.

    With `normalise` each reply's scores are standardised, so that mild and harsh replies have the same weight.
    """

    candidates: int = 10
    attempts: int = ATTEMPTS_EACH
    rounds: int = 20
    normalise: bool = False


class VerbalQuestion(NamedTuple):
    """A question: the prompt that candidates are sampled from, the database, and what a judge reads about both.

    `uid` is unique among the questions of a run.
    """

    uid: str
    prompt: str | Prompt
    db_path: str
    about: str


class JudgeCandidate(NamedTuple):
    """A query that ran and returned rows; `copies` answers have it, in some spelling."""

    sql: str
    copies: int


class JudgeCandidates(NamedTuple):
    """The candidates in `attempts` answers to one question, and why the other answers gave none.

    `unanswered` attempts had no answer. `spare` is the first query that ran without returning rows, else the first
    query at all, else None.
    """

    distinct: tuple[JudgeCandidate, ...]
    attempts: int
    unanswered: int
    without_sql: int
    failed: int
    empty: int
    spare: str | None


class JudgeChoice(NamedTuple):
    """The chosen query, the mean score of each of K candidates, and the K scores of every reply that was read.

    `unread` replies could not be read. Without any candidate `sql` is the spare query, if there is one; a single
    candidate wins without a judge.
    """

    sql: str | None
    scores: tuple[float, ...]
    replies: tuple[tuple[float, ...], ...]
    unread: int
    candidates: JudgeCandidates


class _CandidatePool:
    """The candidates of one question so far: each query by its normal form, and its outcome."""

    def __init__(self) -> None:
        self.attempts = 0
        self.sqls: dict[str, str] = {}
        self.copies: dict[str, int] = {}
        self.outcomes: dict[str, str] = {}
        self.lost = {"unanswered": 0, "without_sql": 0, "failed": 0, "empty": 0}
        self.empty: str | None = None
        self.first: str | None = None

    def result(self, want: int) -> JudgeCandidates:
        """Return the first `want` candidates, and the counts."""
        candidates = [JudgeCandidate(sql, self.copies[form]) for form, sql in self.sqls.items()]
        return JudgeCandidates(tuple(candidates[:want]), self.attempts, **self.lost, spare=self.empty or self.first)


def find_candidates(
    ask: RequestSampler,
    executor: SqlExecutor,
    questions: Sequence[VerbalQuestion],
    read_sql: ReadSql,
    want: int,
    sampling: SamplingParams,
    attempts: int = ATTEMPTS_EACH,
) -> list[JudgeCandidates]:
    """Sample answers in rounds of `want` until each question has that many distinct candidates.

    There are `attempts` rounds at most, and none after one without any answer. They differ in their seeds, which are
    derived from `sampling.seed`; `sampling.n` is ignored.
    """
    if min(want, attempts) < 1:
        raise InputError(f"want={want}, attempts={attempts}: at least one candidate has to be asked for, once")
    tallies = [_CandidatePool() for _ in questions]
    open_ones = list(range(len(questions)))
    for number in range(attempts):
        if not open_ones:
            break
        requests = [_request(questions[i], CANDIDATES, number, questions[i].prompt, sampling, want) for i in open_ones]
        answered = list(zip(open_ones, ask(requests), strict=True))
        for i, texts in answered:
            _add_answers(tallies[i], executor, questions[i].db_path, texts, read_sql)
        open_ones = [i for i, texts in answered if len(tallies[i].sqls) < want and any(map(_is_answer, texts))]
    return [tally.result(want) for tally in tallies]


def judge(
    policy: VerbalPolicy,
    questions: Sequence[VerbalQuestion],
    candidates: Sequence[JudgeCandidates],
    rounds: int = 20,
    normalise: bool = False,
) -> list[JudgeChoice]:
    """Have each question's candidates scored `rounds` times and choose the best -> a verdict per question.

    Up to `rounds` more replies are requested in place of those that cannot be read, and none after a round without any
    answer.
    """
    if rounds < 1:
        raise InputError(f"rounds={rounds}: a judge has to be asked at least once")
    texts = [
        judge_text(policy.shield(q.about), [policy.shield(candidate.sql) for candidate in c.distinct])
        for q, c in zip(questions, candidates, strict=True)
    ]
    read: list[list[tuple[float, ...]]] = [[] for _ in questions]
    unread = [0] * len(questions)
    open_ones = [i for i, candidate in enumerate(candidates) if len(candidate.distinct) > 1]
    prompts = {i: policy.as_prompt(texts[i]) for i in open_ones}
    number = 0
    while open_ones:
        missing = {i: min(rounds - len(read[i]), 2 * rounds - len(read[i]) - unread[i]) for i in open_ones}
        requests = [
            _request(questions[i], JUDGE, number, prompts[i], policy.judge_sampling, missing[i]) for i in open_ones
        ]
        answered = list(zip(open_ones, policy.ask(requests), strict=True))
        for i, replies in answered:
            read_replies = [read_scores(reply or "", len(candidates[i].distinct)) for reply in replies]
            read[i] += [scores for scores in read_replies if scores is not None]
            unread[i] += sum(scores is None for scores in read_replies)
        open_ones = [
            i
            for i, replies in answered
            if len(read[i]) < rounds and len(read[i]) + unread[i] < 2 * rounds and any(map(_is_answer, replies))
        ]
        number += 1
    return [
        _verdict(
            candidates[i], read[i], unread[i], normalise, random.Random(f"{policy.judge_sampling.seed}/{question.uid}")
        )
        for i, question in enumerate(questions)
    ]


def choose_by_judging(
    policy: VerbalPolicy,
    executor: SqlExecutor,
    questions: Sequence[VerbalQuestion],
    read_sql: ReadSql,
    config: JudgingConfig,
) -> list[JudgeChoice]:
    """Find candidates for every question and let the policy choose among them."""
    candidates = find_candidates(
        policy.ask, executor, questions, read_sql, config.candidates, policy.sampling, config.attempts
    )
    return judge(policy, questions, candidates, config.rounds, config.normalise)


def judge_text(about: str, sqls: Sequence[str]) -> str:
    """Return the judge's prompt: the question with its schema, numbered candidates, and how to reply."""
    listed = "\n\n".join(f"Candidate {i}:\n```sql\n{sql}\n```" for i, sql in enumerate(sqls, 1))
    return (
        f"{about.strip()}\n\n"
        f"Below are {len(sqls)} candidate queries for this question. All of them run.\n\n{listed}\n\n"
        "Judge how likely each one is to return exactly what the question asks for: the right tables and joins, all "
        "conditions, the right columns and no others, the right grouping and order. Give each candidate a number from "
        f"0 (surely wrong) to 1 (surely right), {len(sqls)} numbers in the candidates' order, separated by commas, "
        "between tags:\n<scores>0.0, …</scores>\n"
    )


def read_scores(reply: str, count: int) -> tuple[float, ...] | None:
    """Return the `count` numbers of the last <scores>…</scores>, clamped to [0, 1]; None if it holds others.

    Nothing but numbers, commas, semicolons, blanks and brackets may occur between the tags.
    """
    blocks = _SCORES.findall(reply)
    if not blocks:
        return None
    rest = _NUMBER.sub("", blocks[-1])
    numbers = _NUMBER.findall(blocks[-1])
    if rest.strip(" \t\r\n,;[]()") or len(numbers) != count:
        return None
    return tuple(min(max(float(number), 0.0), 1.0) for number in numbers)


def _request(
    question: VerbalQuestion, stage: str, number: int, prompt: str | Prompt, sampling: SamplingParams, n: int
) -> SamplingRequest:
    """Request `n` answers with a seed of their own: neighbouring seeds, questions and rounds must not share any."""
    seed = zlib.crc32(f"{sampling.seed}/{question.uid}/{stage}/{number}".encode()) & 0x7FFFFFFF
    return SamplingRequest(question.uid, stage, number, prompt, dataclasses.replace(sampling, n=n, seed=seed))


def _is_answer(text: str | None) -> bool:
    return text is not None


def _add_answers(
    tally: _CandidatePool, executor: SqlExecutor, db_path: str, texts: Sequence[str | None], read_sql: ReadSql
) -> None:
    """Run the queries of a round of answers, each distinct one once, and add their outcomes to the tally."""
    sqls = [read_sql(text) for text in texts if text is not None]
    written = [(normal_form(sql), sql) for sql in sqls if sql is not None]
    tally.attempts += len(texts)
    tally.lost["unanswered"] += len(texts) - len(sqls)
    tally.lost["without_sql"] += len(sqls) - len(written)
    new = {form: sql for form, sql in reversed(written) if form not in tally.outcomes}
    results = execute_all(executor, [(db_path, sql) for sql in new.values()])
    for form, result in zip(new, results, strict=True):
        tally.outcomes[form] = "failed" if result.status != "ok" else "found" if result.row_count else "empty"
    for form, sql in written:
        outcome = tally.outcomes[form]
        tally.first = tally.first or sql
        if outcome == "found":
            tally.sqls.setdefault(form, sql)
            tally.copies[form] = tally.copies.get(form, 0) + 1
        else:
            tally.lost[outcome] += 1
            tally.empty = tally.empty or (sql if outcome == "empty" else None)


def _verdict(
    candidates: JudgeCandidates, replies: Sequence[tuple[float, ...]], unread: int, normalise: bool, rng: random.Random
) -> JudgeChoice:
    """Choose the candidate of the best mean score in R replies [R,K]; without any, all candidates are equal."""
    names = [candidate.sql for candidate in candidates.distinct]
    if not names:
        return JudgeChoice(candidates.spare, (), (), unread, candidates)
    if not replies:
        return JudgeChoice(rng.choice(names), (0.0,) * len(names), (), unread, candidates)
    scores = np.array(replies)
    if normalise:
        spread = scores.std(axis=1, keepdims=True)
        # A reply with equal scores, up to rounding, prefers no candidate.
        scores = np.where(spread > 1e-9, (scores - scores.mean(axis=1, keepdims=True)) / np.maximum(spread, 1e-12), 0.0)
    # Sums of decimal fractions differ in their last digits by the order of addition: nearly equal counts as equal.
    means = scores.mean(axis=0).round(9)
    best = np.flatnonzero(means == means.max())
    return JudgeChoice(names[rng.choice(best.tolist())], tuple(means.tolist()), tuple(replies), unread, candidates)
