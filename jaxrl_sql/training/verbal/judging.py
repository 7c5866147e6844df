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

    `as_prompt` may put a judge's text through a chat template, whose `escape` marks control tokens in quoted texts.
    """

    ask: RequestSampler
    sampling: SamplingParams
    judge_sampling: SamplingParams
    as_prompt: Callable[[str], str | Prompt] = str
    escape: Callable[[str], str] = str


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
    context: str


class JudgeCandidate(NamedTuple):
    """A query that ran and returned rows; `copies` answers have it, in some spelling."""

    sql: str
    copies: int


class JudgeCandidates(NamedTuple):
    """The candidates in `attempts` answers to one question, and why the other answers gave none.

    `unanswered` attempts had no answer. `fallback` is the first query that ran without returning rows, else the first
    query at all, else None.
    """

    distinct: tuple[JudgeCandidate, ...]
    attempts: int
    unanswered: int
    without_sql: int
    failed: int
    empty: int
    fallback: str | None


class JudgeChoice(NamedTuple):
    """The chosen query, the mean score of each of K candidates, and the K scores of every reply that was read.

    `unread` replies could not be read. Without any candidate `sql` is the fallback query, if there is one; a single
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
        self.rejected = {"unanswered": 0, "without_sql": 0, "failed": 0, "empty": 0}
        self.empty: str | None = None
        self.first: str | None = None

    def result(self, num_candidates: int) -> JudgeCandidates:
        """Return the first `num_candidates` candidates, and the counts."""
        candidates = [JudgeCandidate(sql, self.copies[form]) for form, sql in self.sqls.items()]
        return JudgeCandidates(
            tuple(candidates[:num_candidates]), self.attempts, **self.rejected, fallback=self.empty or self.first
        )


def find_candidates(
    ask: RequestSampler,
    executor: SqlExecutor,
    questions: Sequence[VerbalQuestion],
    read_sql: ReadSql,
    num_candidates: int,
    sampling: SamplingParams,
    attempts: int = ATTEMPTS_EACH,
) -> list[JudgeCandidates]:
    """Sample answers in rounds of `num_candidates` until each question has that many distinct candidates.

    There are `attempts` rounds at most, and none after one without any answer. They differ in their seeds, which are
    derived from `sampling.seed`; `sampling.n` is ignored.
    """
    if min(num_candidates, attempts) < 1:
        raise InputError(f"num_candidates={num_candidates}, attempts={attempts}: both must be at least 1")
    pools = [_CandidatePool() for _ in questions]
    unfinished = list(range(len(questions)))
    for round_number in range(attempts):
        if not unfinished:
            break
        requests = [
            _request(questions[i], CANDIDATES, round_number, questions[i].prompt, sampling, num_candidates)
            for i in unfinished
        ]
        answered = list(zip(unfinished, ask(requests), strict=True))
        for i, texts in answered:
            _add_answers(pools[i], executor, questions[i].db_path, texts, read_sql)
        unfinished = [i for i, texts in answered if len(pools[i].sqls) < num_candidates and any(map(_is_answer, texts))]
    return [pool.result(num_candidates) for pool in pools]


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
        raise InputError(f"rounds={rounds}: must be at least 1")
    texts = [
        judge_text(policy.escape(q.context), [policy.escape(candidate.sql) for candidate in c.distinct])
        for q, c in zip(questions, candidates, strict=True)
    ]
    valid_replies: list[list[tuple[float, ...]]] = [[] for _ in questions]
    unread = [0] * len(questions)
    unfinished = [i for i, candidate in enumerate(candidates) if len(candidate.distinct) > 1]
    prompts = {i: policy.as_prompt(texts[i]) for i in unfinished}
    round_number = 0
    while unfinished:
        missing = {
            i: min(rounds - len(valid_replies[i]), 2 * rounds - len(valid_replies[i]) - unread[i]) for i in unfinished
        }
        requests = [
            _request(questions[i], JUDGE, round_number, prompts[i], policy.judge_sampling, missing[i])
            for i in unfinished
        ]
        answered = list(zip(unfinished, policy.ask(requests), strict=True))
        for i, replies in answered:
            scores_of_replies = [read_scores(reply or "", len(candidates[i].distinct)) for reply in replies]
            valid_replies[i] += [scores for scores in scores_of_replies if scores is not None]
            unread[i] += sum(scores is None for scores in scores_of_replies)
        unfinished = [
            i
            for i, replies in answered
            if len(valid_replies[i]) < rounds
            and len(valid_replies[i]) + unread[i] < 2 * rounds
            and any(map(_is_answer, replies))
        ]
        round_number += 1
    return [
        _verdict(
            candidates[i],
            valid_replies[i],
            unread[i],
            normalise,
            random.Random(f"{policy.judge_sampling.seed}/{question.uid}"),
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


def judge_text(context: str, sqls: Sequence[str]) -> str:
    """Return the judge's prompt: the question with its schema, numbered candidates, and how to reply."""
    listed = "\n\n".join(f"Candidate {i}:\n```sql\n{sql}\n```" for i, sql in enumerate(sqls, 1))
    return (
        f"{context.strip()}\n\n"
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
    remainder = _NUMBER.sub("", blocks[-1])
    numbers = _NUMBER.findall(blocks[-1])
    if remainder.strip(" \t\r\n,;[]()") or len(numbers) != count:
        return None
    return tuple(min(max(float(round_number), 0.0), 1.0) for round_number in numbers)


def _request(
    question: VerbalQuestion, stage: str, round_number: int, prompt: str | Prompt, sampling: SamplingParams, n: int
) -> SamplingRequest:
    """Request `n` answers with a seed of their own: neighbouring seeds, questions and rounds must not share any."""
    seed = zlib.crc32(f"{sampling.seed}/{question.uid}/{stage}/{round_number}".encode()) & 0x7FFFFFFF
    return SamplingRequest(question.uid, stage, round_number, prompt, dataclasses.replace(sampling, n=n, seed=seed))


def _is_answer(text: str | None) -> bool:
    return text is not None


def _add_answers(
    pool: _CandidatePool, executor: SqlExecutor, db_path: str, texts: Sequence[str | None], read_sql: ReadSql
) -> None:
    """Run the queries of a round of answers, each distinct one once, and add their outcomes to the tally."""
    sqls = [read_sql(text) for text in texts if text is not None]
    queries = [(normal_form(sql), sql) for sql in sqls if sql is not None]
    pool.attempts += len(texts)
    pool.rejected["unanswered"] += len(texts) - len(sqls)
    pool.rejected["without_sql"] += len(sqls) - len(queries)
    new_queries = {form: sql for form, sql in reversed(queries) if form not in pool.outcomes}
    results = execute_all(executor, [(db_path, sql) for sql in new_queries.values()])
    for form, result in zip(new_queries, results, strict=True):
        pool.outcomes[form] = "failed" if result.status != "ok" else "found" if result.row_count else "empty"
    for form, sql in queries:
        outcome = pool.outcomes[form]
        pool.first = pool.first or sql
        if outcome == "found":
            pool.sqls.setdefault(form, sql)
            pool.copies[form] = pool.copies.get(form, 0) + 1
        else:
            pool.rejected[outcome] += 1
            pool.empty = pool.empty or (sql if outcome == "empty" else None)


def _verdict(
    candidates: JudgeCandidates, replies: Sequence[tuple[float, ...]], unread: int, normalise: bool, rng: random.Random
) -> JudgeChoice:
    """Choose the candidate of the best mean score in R replies [R,K]; without any, all candidates are equal."""
    names = [candidate.sql for candidate in candidates.distinct]
    if not names:
        return JudgeChoice(candidates.fallback, (), (), unread, candidates)
    if not replies:
        return JudgeChoice(rng.choice(names), (0.0,) * len(names), (), unread, candidates)
    scores = np.array(replies)
    if normalise:
        deviation = scores.std(axis=1, keepdims=True)
        # A reply with equal scores, up to rounding, prefers no candidate.
        scores = np.where(
            deviation > 1e-9, (scores - scores.mean(axis=1, keepdims=True)) / np.maximum(deviation, 1e-12), 0.0
        )
    # Sums of decimal fractions differ in their last digits by the order of addition: nearly equal counts as equal.
    means = scores.mean(axis=0).round(9)
    best = np.flatnonzero(means == means.max())
    return JudgeChoice(names[rng.choice(best.tolist())], tuple(means.tolist()), tuple(replies), unread, candidates)
