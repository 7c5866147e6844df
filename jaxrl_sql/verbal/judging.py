"""Verbal reinforcement learning: no gradients, the policy judges its own candidates in words (PaVeRL-SQL).

For each question candidates are drawn until there are `want` distinct ones that run and return rows, or until
20 · want attempts were made. Then the same policy reads all candidates of a question in one prompt and gives each a
score, `rounds` times; the best mean wins, ties are broken at random. Only numbers between the last <scores> tags are
read, and a reply without the right number of them is counted and asked for again a bounded number of times.

Whatever answers prompts can be asked: `engine_ask` makes an `Ask` of an engine. What is asked next depends on the seed
and on what was answered alone, so whoever keeps the answers can go on where work was left.
"""

from __future__ import annotations

import dataclasses
import random
import re
import zlib
from collections.abc import Callable, Sequence
from typing import NamedTuple

import numpy as np

from jaxrl_sql.rollout.engine import Engine
from jaxrl_sql.rollout.sampling import SamplingParams
from jaxrl_sql.sqlenv.dialect import normal_form
from jaxrl_sql.sqlenv.ports import SqlExecutor
from jaxrl_sql.types import InputError, Prompt

CANDIDATES, JUDGE = "candidates", "judge"
ATTEMPTS_EACH = 20
SCORES_END = "</scores>"

_SCORES = re.compile(r"<scores>((?:(?!<scores>).)*?)</scores>", re.DOTALL | re.IGNORECASE)
_NUMBER = re.compile(r"(?<![\w.])[-+]?(?:\d+\.?\d*|\.\d+)(?:[eE][-+]?\d+)?(?![\w.]*\w)")


class Request(NamedTuple):
    """`how.n` answers to a prompt, for a question's `stage` (CANDIDATES or JUDGE) and the round of it, from 0."""

    uid: str
    stage: str
    round: int
    prompt: str | Prompt
    how: SamplingParams


# Requests of one stage and round -> the texts of each, in order; None for one that was not answered.
Ask = Callable[[Sequence[Request]], Sequence[Sequence[str | None]]]
# The SQL of an answer, or None when it has none.
ReadSql = Callable[[str], str | None]


class Question(NamedTuple):
    """What is asked: the prompt that candidates are drawn from, the database, and what a judge is told of both.

    `uid` is the question's own among those that are asked with it.
    """

    uid: str
    prompt: str | Prompt
    db_path: str
    about: str


class Candidate(NamedTuple):
    """A query that ran and returned rows; `copies` is how many answers wrote it, give or take spelling."""

    sql: str
    copies: int


class Candidates(NamedTuple):
    """What `attempts` answers to one question came to, and how many were lost to what.

    `unanswered` are attempts that brought no answer at all. `spare` is the first query that ran without returning rows,
    else the first query at all, else None.
    """

    found: tuple[Candidate, ...]
    attempts: int
    unanswered: int
    without_sql: int
    failed: int
    empty: int
    spare: str | None


class Verdict(NamedTuple):
    """The chosen query, the mean score of each of K candidates, and the K scores of every reply that was read.

    `unread` replies were not. Where no candidate was found `sql` is the spare query, if there is one; a single
    candidate wins without a judge.
    """

    sql: str | None
    scores: tuple[float, ...]
    replies: tuple[tuple[float, ...], ...]
    unread: int
    candidates: Candidates


class _Tally:
    """The candidates of one question while answers come in: each query by its normal form, and what came of it."""

    def __init__(self) -> None:
        self.attempts = 0
        self.sqls: dict[str, str] = {}
        self.copies: dict[str, int] = {}
        self.fates: dict[str, str] = {}
        self.lost = {"unanswered": 0, "without_sql": 0, "failed": 0, "empty": 0}
        self.empty: str | None = None
        self.first: str | None = None

    def result(self, want: int) -> Candidates:
        """Return what there is, the first `want` candidates of it."""
        found = [Candidate(sql, self.copies[form]) for form, sql in self.sqls.items()]
        return Candidates(tuple(found[:want]), self.attempts, **self.lost, spare=self.empty or self.first)


def engine_ask(engine: Engine, step: int = 0) -> Ask:
    """Let an engine answer; a prompt that it cannot serve is not answered."""

    def ask(requests: Sequence[Request]) -> list[list[str | None]]:
        texts: list[list[str | None]] = [[None] * one.how.n for one in requests]
        prompts, hows = [one.prompt for one in requests], [one.how for one in requests]
        for sample in engine.generate(prompts, hows, step):
            texts[sample.prompt_index][sample.index] = None if sample.error else sample.text
        return texts

    return ask


def find_candidates(
    ask: Ask,
    executor: SqlExecutor,
    questions: Sequence[Question],
    read: ReadSql,
    want: int,
    how: SamplingParams,
    attempts: int = ATTEMPTS_EACH,
) -> list[Candidates]:
    """Draw answers in rounds of `want` until each question has that many distinct candidates, or no attempts are left.

    There are `attempts` rounds at most, and none after one without any answer. They differ in their seeds, which come
    from `how.seed`; `how.n` is not looked at.
    """
    if min(want, attempts) < 1:
        raise InputError(f"want={want}, attempts={attempts}: at least one candidate has to be asked for, once")
    tallies = [_Tally() for _ in questions]
    open_ones = list(range(len(questions)))
    for number in range(attempts):
        if not open_ones:
            break
        requests = [_request(questions[i], CANDIDATES, number, questions[i].prompt, how, want) for i in open_ones]
        answered = list(zip(open_ones, ask(requests), strict=True))
        for i, texts in answered:
            _take(tallies[i], executor, questions[i].db_path, texts, read)
        open_ones = [i for i, texts in answered if len(tallies[i].sqls) < want and any(map(_is_answer, texts))]
    return [tally.result(want) for tally in tallies]


def judge(
    ask: Ask,
    questions: Sequence[Question],
    candidates: Sequence[Candidates],
    how: SamplingParams,
    rounds: int = 20,
    normalise: bool = False,
    as_prompt: Callable[[str], str | Prompt] = str,
) -> list[Verdict]:
    """Have each question's candidates scored `rounds` times and take the best -> a verdict a question.

    As many replies more as `rounds` are asked for in place of those that could not be read, and none after a round
    without any answer. With `normalise` each reply's scores are taken as distances from their mean in standard
    deviations, so that mild and harsh replies weigh alike. `as_prompt` may put the judge's text through a chat
    template.
    """
    if rounds < 1:
        raise InputError(f"rounds={rounds}: a judge has to be asked at least once")
    texts = [judge_text(q.about, [one.sql for one in c.found]) for q, c in zip(questions, candidates, strict=True)]
    read: list[list[tuple[float, ...]]] = [[] for _ in questions]
    unread = [0] * len(questions)
    open_ones = [i for i, one in enumerate(candidates) if len(one.found) > 1]
    prompts = {i: as_prompt(texts[i]) for i in open_ones}
    number = 0
    while open_ones:
        missing = {i: min(rounds - len(read[i]), 2 * rounds - len(read[i]) - unread[i]) for i in open_ones}
        requests = [_request(questions[i], JUDGE, number, prompts[i], how, missing[i]) for i in open_ones]
        answered = list(zip(open_ones, ask(requests), strict=True))
        for i, said in answered:
            found = [read_scores(reply or "", len(candidates[i].found)) for reply in said]
            read[i] += [scores for scores in found if scores is not None]
            unread[i] += sum(scores is None for scores in found)
        open_ones = [
            i
            for i, said in answered
            if len(read[i]) < rounds and len(read[i]) + unread[i] < 2 * rounds and any(map(_is_answer, said))
        ]
        number += 1
    return [
        _verdict(candidates[i], read[i], unread[i], normalise, random.Random(f"{how.seed}/{question.uid}"))
        for i, question in enumerate(questions)
    ]


def choose_by_judging(
    ask: Ask,
    executor: SqlExecutor,
    questions: Sequence[Question],
    read: ReadSql,
    how: SamplingParams,
    judge_how: SamplingParams,
    want: int = 10,
    attempts: int = ATTEMPTS_EACH,
    rounds: int = 20,
    normalise: bool = False,
    as_prompt: Callable[[str], str | Prompt] = str,
) -> list[Verdict]:
    """Find candidates for every question and let the policy choose among its own."""
    candidates = find_candidates(ask, executor, questions, read, want, how, attempts)
    return judge(ask, questions, candidates, judge_how, rounds, normalise, as_prompt)


def judge_text(about: str, sqls: Sequence[str]) -> str:
    """Write what a judge reads: the question with its schema, numbered candidates, and how to reply."""
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
    """Return the `count` numbers of the last <scores>…</scores>, clamped to [0, 1]; None when that is not what it says.

    Nothing but numbers, commas, semicolons, blanks and brackets may stand between the tags.
    """
    blocks = _SCORES.findall(reply)
    if not blocks:
        return None
    rest = _NUMBER.sub("", blocks[-1])
    numbers = _NUMBER.findall(blocks[-1])
    if rest.strip(" \t\r\n,;[]()") or len(numbers) != count:
        return None
    return tuple(min(max(float(number), 0.0), 1.0) for number in numbers)


def _request(question: Question, stage: str, number: int, prompt: str | Prompt, how: SamplingParams, n: int) -> Request:
    """Ask for `n` answers with a seed of their own: neighbouring seeds, questions and rounds must not share any."""
    seed = zlib.crc32(f"{how.seed}/{question.uid}/{stage}/{number}".encode()) & 0x7FFFFFFF
    return Request(question.uid, stage, number, prompt, dataclasses.replace(how, n=n, seed=seed))


def _is_answer(text: str | None) -> bool:
    return text is not None


def _take(tally: _Tally, executor: SqlExecutor, db_path: str, texts: Sequence[str | None], read: ReadSql) -> None:
    """Run what a round of answers holds, each distinct query once, and sort it into the tally."""
    sqls = [read(text) for text in texts if text is not None]
    written = [(normal_form(sql), sql) for sql in sqls if sql is not None]
    tally.attempts += len(texts)
    tally.lost["unanswered"] += len(texts) - len(sqls)
    tally.lost["without_sql"] += len(sqls) - len(written)
    new = {form: sql for form, sql in reversed(written) if form not in tally.fates}
    outcomes = executor.execute_many([(db_path, sql) for sql in new.values()])
    for form, outcome in zip(new, outcomes, strict=True):
        tally.fates[form] = "failed" if outcome.status != "ok" else "found" if outcome.row_count else "empty"
    for form, sql in written:
        fate = tally.fates[form]
        tally.first = tally.first or sql
        if fate == "found":
            tally.sqls.setdefault(form, sql)
            tally.copies[form] = tally.copies.get(form, 0) + 1
        else:
            tally.lost[fate] += 1
            tally.empty = tally.empty or (sql if fate == "empty" else None)


def _verdict(
    found: Candidates, replies: Sequence[tuple[float, ...]], unread: int, normalise: bool, draw: random.Random
) -> Verdict:
    """Take the best mean of the scores in R replies [R,K]; without any, all candidates are level."""
    names = [one.sql for one in found.found]
    if not names:
        return Verdict(found.spare, (), (), unread, found)
    if not replies:
        return Verdict(draw.choice(names), (0.0,) * len(names), (), unread, found)
    scores = np.array(replies)
    if normalise:
        spread = scores.std(axis=1, keepdims=True)
        # A reply that scores all alike, but for rounding, says nothing of any of them.
        scores = np.where(spread > 1e-9, (scores - scores.mean(axis=1, keepdims=True)) / np.maximum(spread, 1e-12), 0.0)
    # Sums of decimal fractions differ in their last digits by the order of adding: what is nearly level is level.
    means = scores.mean(axis=0).round(9)
    best = np.flatnonzero(means == means.max())
    return Verdict(names[draw.choice(best.tolist())], tuple(means.tolist()), tuple(replies), unread, found)
