"""The JSON record per judged question: question, answer, results and scores.

A gold is a question's reference query. To judge an answer is to run its SQL and the gold, and to compare their results
by rules (`bird` compares rows as sets, as BIRD's script does). Metrics depend on the records only, so a resumed
evaluation gives the same metrics.
"""

from __future__ import annotations

import dataclasses
import math
import zlib
from collections import Counter
from collections.abc import Callable, Sequence
from types import MappingProxyType
from typing import NamedTuple

from jaxrl_sql.runtime.progress import ProgressCallback, no_progress
from jaxrl_sql.text2sql.env.dialect import runnable_sql
from jaxrl_sql.text2sql.env.ports import SqlExecutor, SqlOutcome
from jaxrl_sql.text2sql.evals.score_predictions import score_predictions
from jaxrl_sql.text2sql.evals.verdict import NOT_ASKED, Verdict
from jaxrl_sql.text2sql.evals.vote import Ballot, VoteResult, ballots, choose, pass_curve, vote_curve
from jaxrl_sql.types import Cell, Example, Fields, Json, Record, Response, response_text

ROWS, CELL = 5, 200
"""The number of rows of a result that a record contains, and the number of characters of a cell."""
# Converting a very large result to Python rows takes seconds, so larger results have only a row count.
_COUNTED_ONLY = 20_000
# The number of results whose votes a record contains, those with the most votes.
_VOTES_SHOWN = 16
# Statuses of queries that were stopped, whose results cannot be shown.
_STOPPED = ("timeout", "too_large", "cancelled", "crashed")


class QuestionAnswers(NamedTuple):
    """The answers to a question: the prompt, and the SQL (None: no SQL) and the response of each answer.

    `error` is the reason if the question was not asked, for example because its prompt is too long; it is then without
    answers. `tokens` is the number of tokens over all answers, 0 for predictions. `finish_reasons` has a reason per
    answer and is empty for predictions.
    """

    sqls: tuple[str | None, ...]
    responses: tuple[Response, ...] = ()
    prompt: str = ""
    error: str = ""
    tokens: int = 0
    finish_reasons: tuple[str, ...] = ()


class AnswerJudge(NamedTuple):
    """Judge answers by `rules`; `own_rule` is the rule that the benchmark itself uses.

    `vote` is the method that selects one of several answers (`vote.py`). `timer` is the executor that measures the
    speed of right answers, for rules such as `r_ves`. `prepare` is the preprocessing of a query by the benchmark's
    scorer, if any. `options` are those of the comparison, see `score_predictions`.
    """

    executor: SqlExecutor
    rules: tuple[str, ...]
    own_rule: str
    vote: str = "result"
    timer: SqlExecutor | None = None
    prepare: Callable[[str], str] | None = None
    options: Fields = MappingProxyType({})

    def records(
        self,
        examples: Sequence[Example],
        answered: Sequence[QuestionAnswers],
        on_progress: ProgressCallback = no_progress,
    ) -> list[Record]:
        """Judge the answers and return a record per question, in order; `on_progress` gets the number judged."""
        pairs = list(zip(examples, answered, strict=True))
        voted = self._vote([pair for pair in pairs if len(pair[1].sqls) > 1])
        chosen = [voted[example.uid][1].index if example.uid in voted else 0 for example in examples]
        verdicts = self.verdicts(examples, answered, chosen, on_progress)
        results = _first_rows(self.executor, examples, verdicts)
        candidate_scores = self._candidate_scores(
            [(example, answer) for example, answer in pairs if example.uid in voted]
        )
        records = []
        for (example, answer), index, verdict, result in zip(pairs, chosen, verdicts, results, strict=True):
            record = _record(example, answer, index, verdict, self.own_rule) | {"results": result}
            if example.uid in voted:
                record |= _votes(example, *voted[example.uid], candidate_scores[example.uid])
            records.append(record)
        return records

    def verdicts(
        self,
        examples: Sequence[Example],
        answered: Sequence[QuestionAnswers],
        chosen: Sequence[int] | None = None,
        on_progress: ProgressCallback = no_progress,
    ) -> list[Verdict]:
        """Score answer `chosen[i]` (default: the first) to each question; questions not asked count as wrong."""
        with_index = zip(answered, chosen or [0] * len(answered), strict=True)
        sqls = [self._prepared(answer.sqls[index]) if answer.sqls else None for answer, index in with_index]
        verdicts = score_predictions(
            self.executor,
            examples,
            sqls,
            self.rules,
            options=self.options,
            timer=self.timer,
            on_progress=on_progress,
        )
        return [
            _as_not_asked(verdict) if answer.error else verdict
            for verdict, answer in zip(verdicts, answered, strict=True)
        ]

    def _prepared(self, sql: str | None) -> str | None:
        """Return a query after the preprocessing by the benchmark's scorer."""
        return self.prepare(sql) if self.prepare and sql else sql

    def _vote(self, pairs: Sequence[tuple[Example, QuestionAnswers]]) -> dict[str, tuple[Ballot, VoteResult]]:
        """Return by question id the results of the candidates (the ballot), and the vote among them."""
        candidates = [[*map(self._prepared, answer.sqls)] for _, answer in pairs]
        counted = ballots(self.executor, [example for example, _ in pairs], candidates, self.vote)
        return {example.uid: (ballot, choose(ballot)) for (example, _), ballot in zip(pairs, counted, strict=True)}

    def _candidate_scores(self, pairs: Sequence[tuple[Example, QuestionAnswers]]) -> dict[str, list[float] | None]:
        """Return the scores of each question's candidates by the benchmark's own rule; None if the gold failed."""
        distinct = list(
            {(example.uid, sql): (example, sql) for example, answer in pairs for sql in answer.sqls}.values()
        )
        prepared = [self._prepared(sql) for _, sql in distinct]
        examples = [example for example, _ in distinct]
        judged = score_predictions(
            self.executor, examples, prepared, (self.own_rule,), options=self.options, timer=self.timer
        )
        scores = {(example.uid, sql): verdict.scores for (example, sql), verdict in zip(distinct, judged, strict=True)}
        return {
            example.uid: [scores[example.uid, sql][self.own_rule] for sql in answer.sqls]
            if all(self.own_rule in scores[example.uid, sql] for sql in answer.sqls)
            else None
            for example, answer in pairs
        }


def _record(example: Example, answer: QuestionAnswers, index: int, verdict: Verdict, own_rule: str) -> Record:
    """Return the record of a question with the chosen answer, number `index`; `own` is the benchmark's rule."""
    response = answer.responses[index] if answer.responses else ""
    is_dialogue = not isinstance(response, str) and len(response) > 1
    return {
        "id": example.uid,
        "db_id": example.db_id,
        "question": example.question,
        "evidence": example.evidence,
        "prompt": answer.prompt,
        "answer": [list(turn) for turn in response] if is_dialogue else response_text(response),
        "finish_reason": answer.finish_reasons[index] if answer.finish_reasons else "",
        "sql": answer.sqls[index] if answer.sqls else None,
        "gold_sql": example.gold_sql,
        "own": own_rule,
        **{key: value for key, value in dataclasses.asdict(verdict).items() if key not in ("uid", "sql")},
        "reasons": list(verdict.reasons),
        **({"error": answer.error} if answer.error else {}),
        **({"finish_reasons": Counter(answer.finish_reasons)} if len(answer.finish_reasons) > 1 else {}),
    }


def _votes(example: Example, ballot: Ballot, choice: VoteResult, scores: list[float] | None) -> Record:
    """Return the votes on a question, and its accuracies by number of samples, as fields of its record.

    `vote` has the accuracy of the vote and `pass` has pass@k, by number of samples; `right` counts right answers. The
    question's id seeds the random subsets of samples.
    """
    record: Record = {"samples": len(ballot.sqls), "votes": [list(vote) for vote in choice.votes[:_VOTES_SHOWN]]}
    if scores is None:
        return record
    n = len(scores)
    sizes = sorted({*(2**i for i in range(n.bit_length())), n})
    curve = vote_curve([ballot], [scores], sizes, seed=zlib.crc32(example.uid.encode()))
    passes = pass_curve([scores], sizes)
    return record | {
        "right": sum(value >= 1.0 for value in scores),
        "vote": {str(k): value for k, value in curve.items()},
        "pass": {str(k): value for k, value in passes.items()},
    }


def _as_not_asked(verdict: Verdict) -> Verdict:
    """Return the verdict on a question that was not asked: a score of 0 by each rule."""
    return dataclasses.replace(verdict, status=NOT_ASKED, scores=dict.fromkeys(verdict.scores, 0.0), reasons=())


def _first_rows(
    executor: SqlExecutor, examples: Sequence[Example], verdicts: Sequence[Verdict]
) -> list[dict[str, Record | None]]:
    """Return the first rows of each prediction and its gold, mostly from the executor's cache.

    Queries that were stopped do not run again.
    """
    judged = list(zip(examples, verdicts, strict=True))
    sqls = [(runnable_sql(v.sql, example) or "") if v.sql and v.status not in _STOPPED else "" for example, v in judged]
    golds = ["" if v.gold_status in _STOPPED else example.gold_sql for example, v in judged]
    predicted = executor.execute_many([(example.database, sql) for example, sql in zip(examples, sqls, strict=True)])
    expected = executor.execute_many([(example.database, sql) for example, sql in zip(examples, golds, strict=True)])
    return [
        {
            "prediction": _describe_outcome(outcome, verdict.status),
            "gold": _gold_table_rows(example) if example.gold_tables else _describe_outcome(gold, verdict.gold_status),
        }
        for example, verdict, outcome, gold in zip(examples, verdicts, predicted, expected, strict=True)
    ]


def result_of(outcome: SqlOutcome) -> Record | None:
    """Return the first rows of a result as JSON values, or its error; None if there was no SQL."""
    return _describe_outcome(outcome, outcome.status)


def format_row(row: Sequence[Cell]) -> list[Json]:
    """Return a row's cells as JSON values, with long ones truncated."""
    return [_cell(cell) for cell in row]


def _describe_outcome(outcome: SqlOutcome, status: str) -> Record | None:
    """Return the first rows of a result, or the error; None if there was no SQL."""
    if status in _STOPPED:
        return {"error": status}
    if outcome.status == "no_sql":
        return None
    if outcome.status != "ok":
        return {"error": _cell(f"{outcome.status}: {outcome.error or ''}")}
    rows = outcome.rows[:ROWS] if outcome.row_count <= _COUNTED_ONLY else []
    return _result_record(outcome.columns, rows, outcome.row_count)


def _gold_table_rows(example: Example) -> Record:
    """Return the first rows of a gold that is a result instead of a query."""
    columns, rows = example.gold_tables[0]
    return _result_record(columns, rows[:ROWS], len(rows))


def _result_record(columns: Sequence[str], rows: Sequence[Sequence[Cell]], count: int) -> Record:
    return {
        "columns": [_cell(name) for name in columns],
        "rows": [format_row(row) for row in rows],
        "row_count": count,
    }


def _cell(value: Cell) -> Json:
    """Return a cell as a JSON value, truncated if long."""
    if isinstance(value, bytes):
        return f"x'{value[: CELL // 2].hex()}'" + ("…" if len(value) > CELL // 2 else "")
    if isinstance(value, str):
        text = value.encode("utf-8", errors="replace").decode()
        return text if len(text) <= CELL else text[:CELL] + "…"
    return str(value) if isinstance(value, float) and not math.isfinite(value) else value


def verdict_of(record: Fields) -> Verdict:
    """Return the verdict of a record."""
    fields = {field.name: record[field.name] for field in dataclasses.fields(Verdict) if field.name != "uid"}
    return Verdict(uid=record["id"], **{**fields, "reasons": tuple(fields["reasons"])})


def response_of(record: Fields) -> Response:
    """Return the answer of a record: a text or a dialogue."""
    answer = record["answer"]
    return answer if isinstance(answer, str) else [(role, text) for role, text in answer]


def example_of(record: Fields) -> Example:
    """Return the example of a record, with the fields that grouping needs."""
    return Example(record["id"], record["db_id"], "", record["question"], record["gold_sql"])
