"""Verbal reinforcement learning: no gradients, the policy judges its own candidates in words (PaVeRL-SQL).

A *candidate* is a query that runs and returns rows. For each question, answers are sampled until there are `candidates`
distinct candidates, or until `attempts` times that number of answers was sampled. Then the same policy, as the *judge*,
reads all candidates of a question in one prompt and scores each. It does so `rounds` times; the candidate with the
highest mean score wins, and ties are broken at random. Only the numbers between the last <scores> tags of a reply are
read. A reply without the right number of scores is counted as unread and requested again, at most `rounds` times.

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
"""The stages of a question: sampling candidates, and judging them."""
ATTEMPTS_EACH = 20
"""The default maximum number of answers per requested candidate."""
SCORES_END = "</scores>"

_SCORES = re.compile(r"<scores>((?:(?!<scores>).)*?)</scores>", re.DOTALL | re.IGNORECASE)
# A decimal number that is not part of a word or of a longer number.
_NUMBER = re.compile(r"(?<![\w.])[-+]?(?:\d+\.?\d*|\.\d+)(?:[eE][-+]?\d+)?(?![\w.]*\w)")


class SamplingRequest(NamedTuple):
    """A request for `sampling.n` answers to a prompt.

    `uid` is the question's id, `stage` is CANDIDATES or JUDGE, and `round` counts the rounds of the stage from 0.
    """

    uid: str
    stage: str
    round: int
    prompt: str | Prompt
    sampling: SamplingParams


# Takes the requests of one stage and round; returns the answers to each, in order, with None for a failed attempt.
RequestSampler = Callable[[Sequence[SamplingRequest]], Sequence[Sequence[str | None]]]
# Returns the SQL of an answer's text, or None if it has no SQL.
ReadSql = Callable[[str], str | None]


class VerbalPolicy(NamedTuple):
    """A policy that answers and judges, with sampling parameters for each role.

    `as_prompt` makes a prompt of the judge's text, for example by a chat template. `escape` is applied to the schema,
    the question and the SQL in that text: it marks names of control tokens, such as `<|im_end|>`, which are then
    encoded as plain text.
    """

    ask: RequestSampler
    sampling: SamplingParams
    judge_sampling: SamplingParams
    as_prompt: Callable[[str], str | Prompt] = str
    escape: Callable[[str], str] = str


@dataclass(frozen=True)
class JudgingConfig:
    """The number of candidates per question, of attempts per candidate, and of the judge's replies (`rounds`).

    With `normalise` the scores of each reply are standardised (mean 0, deviation 1), so that mild and harsh replies
    have the same weight.
    """

    candidates: int = 10
    attempts: int = ATTEMPTS_EACH
    rounds: int = 20
    normalise: bool = False


class VerbalQuestion(NamedTuple):
    """A question: the prompt that candidates are sampled from, its database, and the judge's context.

    `context` is the text that the judge reads before the candidates: the schema and the question. `uid` is unique among
    the questions of a run.
    """

    uid: str
    prompt: str | Prompt
    db_path: str
    context: str


class JudgeCandidate(NamedTuple):
    """A query that ran and returned rows; `copies` is the number of answers with this query in any spelling."""

    sql: str
    copies: int


class JudgeCandidates(NamedTuple):
    """The distinct candidates in `attempts` answers to one question, and the counts of the other attempts.

    `unanswered` attempts had no answer, `without_sql` had an answer without SQL, `failed` a query that failed, and
    `empty` a query without rows. `fallback` is the first query that ran without returning rows, else the first query at
    all, else None.
    """

    distinct: tuple[JudgeCandidate, ...]
    attempts: int
    unanswered: int
    without_sql: int
    failed: int
    empty: int
    fallback: str | None


class JudgeChoice(NamedTuple):
    """The chosen query `sql`, the mean score of each of K candidates, and the K scores of every reply that was read.

    `unread` is the number of replies that could not be read. Without any candidate `sql` is the fallback query, if
    there is one. A single candidate wins without a judge. Mean scores without any reply are 0.
    """

    sql: str | None
    scores: tuple[float, ...]
    replies: tuple[tuple[float, ...], ...]
    unread: int
    candidates: JudgeCandidates


class _CandidatePool:
    """The candidates of one question so far.

    `sqls` and `copies` have each candidate and the number of its answers, by the query's normal form; `outcomes` has
    the outcome of every query: "candidate", "empty" or "failed". `first_empty` is the first query without rows,
    `first` the first query.
    """

    def __init__(self) -> None:
        self.attempts = 0
        self.sqls: dict[str, str] = {}
        self.copies: dict[str, int] = {}
        self.outcomes: dict[str, str] = {}
        self.rejected = {"unanswered": 0, "without_sql": 0, "failed": 0, "empty": 0}
        self.first_empty: str | None = None
        self.first: str | None = None

    def result(self, num_candidates: int) -> JudgeCandidates:
        """Return the first `num_candidates` candidates, and the counts."""
        candidates = [JudgeCandidate(sql, self.copies[form]) for form, sql in self.sqls.items()]
        return JudgeCandidates(
            tuple(candidates[:num_candidates]), self.attempts, **self.rejected, fallback=self.first_empty or self.first
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

    A question has at most `attempts` rounds, and none after a round without any answer. The rounds have different
    seeds, which are derived from `sampling.seed`; `sampling.n` is ignored.
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
    """Let the judge score each question's candidates `rounds` times, and return the choice for each question.

    Replies that cannot be read are replaced by up to `rounds` further replies. After a round without any answer no more
    are requested.
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
        # Replies to request: the missing ones, while the total stays within 2 * rounds.
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
        _choose(
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
    """Return the text for the judge: the question with its schema, numbered candidates, and the format of the reply."""
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
    """Return the `count` scores in the last <scores>…</scores>, clamped to [0, 1].

    The result is None without the tags, and if there is another number of scores. It is also None if anything but
    numbers, commas, semicolons, blanks and brackets occurs between the tags.
    """
    blocks = _SCORES.findall(reply)
    if not blocks:
        return None
    remainder = _NUMBER.sub("", blocks[-1])
    numbers = _NUMBER.findall(blocks[-1])
    if remainder.strip(" \t\r\n,;[]()") or len(numbers) != count:
        return None
    return tuple(min(max(float(number), 0.0), 1.0) for number in numbers)


def _request(
    question: VerbalQuestion, stage: str, round_number: int, prompt: str | Prompt, sampling: SamplingParams, n: int
) -> SamplingRequest:
    """Return a request for `n` answers.

    Its seed is a hash, so that runs with consecutive seeds, questions and rounds never use the same random numbers.
    """
    seed = zlib.crc32(f"{sampling.seed}/{question.uid}/{stage}/{round_number}".encode()) & 0x7FFFFFFF
    return SamplingRequest(question.uid, stage, round_number, prompt, dataclasses.replace(sampling, n=n, seed=seed))


def _is_answer(text: str | None) -> bool:
    return text is not None


def _add_answers(
    pool: _CandidatePool, executor: SqlExecutor, db_path: str, texts: Sequence[str | None], read_sql: ReadSql
) -> None:
    """Run the queries of a round of answers, each distinct query once, and add their outcomes to the pool."""
    sqls = [read_sql(text) for text in texts if text is not None]
    queries = [(normal_form(sql), sql) for sql in sqls if sql is not None]
    pool.attempts += len(texts)
    pool.rejected["unanswered"] += len(texts) - len(sqls)
    pool.rejected["without_sql"] += len(sqls) - len(queries)
    # Reversed, so that the first spelling of a query is the one that runs.
    new_queries = {form: sql for form, sql in reversed(queries) if form not in pool.outcomes}
    results = execute_all(executor, [(db_path, sql) for sql in new_queries.values()])
    for form, result in zip(new_queries, results, strict=True):
        pool.outcomes[form] = "failed" if result.status != "ok" else "candidate" if result.row_count else "empty"
    for form, sql in queries:
        outcome = pool.outcomes[form]
        pool.first = pool.first or sql
        if outcome == "candidate":
            pool.sqls.setdefault(form, sql)
            pool.copies[form] = pool.copies.get(form, 0) + 1
        else:
            pool.rejected[outcome] += 1
            pool.first_empty = pool.first_empty or (sql if outcome == "empty" else None)


def _choose(
    candidates: JudgeCandidates, replies: Sequence[tuple[float, ...]], unread: int, normalise: bool, rng: random.Random
) -> JudgeChoice:
    """Choose the candidate with the highest mean score in R replies [R,K], for K candidates.

    Equal means, and all candidates if there is no reply, are decided at random.
    """
    queries = [candidate.sql for candidate in candidates.distinct]
    if not queries:
        return JudgeChoice(candidates.fallback, (), (), unread, candidates)
    if not replies:
        return JudgeChoice(rng.choice(queries), (0.0,) * len(queries), (), unread, candidates)
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
    return JudgeChoice(queries[rng.choice(best.tolist())], tuple(means.tolist()), tuple(replies), unread, candidates)
