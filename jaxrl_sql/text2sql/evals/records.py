"""What is kept of each judged question: a JSON object that says what was asked, answered, found, and how it was scored.

Numbers are made from these records alone, so that work that was broken off and gone on with gives the same ones.
"""

from __future__ import annotations

import dataclasses
import math
import zlib
from collections import Counter
from collections.abc import Callable, Sequence
from types import MappingProxyType
from typing import NamedTuple

from jaxrl_sql.text2sql.env.dialect import as_run
from jaxrl_sql.text2sql.env.ports import SqlExecutor, SqlOutcome
from jaxrl_sql.text2sql.evals.score_predictions import score_predictions
from jaxrl_sql.text2sql.evals.verdict import NOT_ASKED, Verdict
from jaxrl_sql.text2sql.evals.vote import Ballot, Choice, ballots, choose, pass_curve, vote_curve
from jaxrl_sql.types import Cell, Example, Fields, Json, Record, Response, whole_text

ROWS, CELL = 5, 200
# Making Python's rows of a very large result to show five of them takes seconds.
_COUNTED_ONLY = 20_000
_VOTES_SHOWN = 16
_STOPPED = ("timeout", "too_large", "cancelled", "crashed")


class Answered(NamedTuple):
    """What was said to a question: its prompt, each answer and the SQL in it; `fault` says why nothing was asked.

    `tokens` is how many the model wrote for all answers; 0 for predictions. `finish_reasons` has a reason per answer,
    and none for predictions.
    """

    sqls: tuple[str | None, ...]
    responses: tuple[Response, ...] = ()
    prompt: str = ""
    fault: str = ""
    tokens: int = 0
    finish_reasons: tuple[str, ...] = ()


class Judging(NamedTuple):
    """How answers are judged: by `rules`, of which `own` is the benchmark's; several answers choose by a `vote`.

    `prepare` is what the benchmark's scorer does to a query before it runs it, where it does something; `options` are
    those of the comparison.
    """

    executor: SqlExecutor
    rules: tuple[str, ...]
    own: str
    vote: str = "result"
    timer: SqlExecutor | None = None
    prepare: Callable[[str], str] | None = None
    options: Fields = MappingProxyType({})

    def records(self, examples: Sequence[Example], answered: Sequence[Answered]) -> list[Record]:
        """Judge what was answered and return a record a question, in order."""
        pairs = list(zip(examples, answered, strict=True))
        voted = self._voted([pair for pair in pairs if len(pair[1].sqls) > 1])
        chosen = [voted[one.uid][1].index if one.uid in voted else 0 for one in examples]
        verdicts = self.verdicts(examples, answered, chosen)
        results = _first_rows(self.executor, examples, verdicts)
        candidate_scores = self._candidate_scores([(example, said) for example, said in pairs if example.uid in voted])
        records = []
        for (example, said), at, verdict, shown in zip(pairs, chosen, verdicts, results, strict=True):
            record = _record(example, said, at, verdict, self.own) | {"results": shown}
            if example.uid in voted:
                record |= _votes(example, *voted[example.uid], candidate_scores[example.uid])
            records.append(record)
        return records

    def verdicts(
        self, examples: Sequence[Example], answered: Sequence[Answered], chosen: Sequence[int] | None = None
    ) -> list[Verdict]:
        """Score the first answer to each question, or that of number `chosen[i]`; what was not asked is wrong."""
        numbered = zip(answered, chosen or [0] * len(answered), strict=True)
        sqls = [self._ready(said.sqls[at]) if said.sqls else None for said, at in numbered]
        found = score_predictions(self.executor, examples, sqls, self.rules, options=self.options, timer=self.timer)
        return [_not_asked(one) if said.fault else one for one, said in zip(found, answered, strict=True)]

    def _ready(self, sql: str | None) -> str | None:
        return self.prepare(sql) if self.prepare and sql else sql

    def _voted(self, pairs: Sequence[tuple[Example, Answered]]) -> dict[str, tuple[Ballot, Choice]]:
        candidates = [[*map(self._ready, said.sqls)] for _, said in pairs]
        found = ballots(self.executor, [one for one, _ in pairs], candidates, self.vote)
        return {one.uid: (ballot, choose(ballot)) for (one, _), ballot in zip(pairs, found, strict=True)}

    def _candidate_scores(self, pairs: Sequence[tuple[Example, Answered]]) -> dict[str, list[float] | None]:
        """Return the scores of each question's candidates by the benchmark's own rule; None where the gold failed."""
        distinct = list({(one.uid, sql): (one, sql) for one, said in pairs for sql in said.sqls}.values())
        ready = [self._ready(sql) for _, sql in distinct]
        asked = [one for one, _ in distinct]
        judged = score_predictions(self.executor, asked, ready, (self.own,), options=self.options, timer=self.timer)
        scores = {(one.uid, sql): found.scores for (one, sql), found in zip(distinct, judged, strict=True)}
        return {
            one.uid: [scores[one.uid, sql][self.own] for sql in said.sqls]
            if all(self.own in scores[one.uid, sql] for sql in said.sqls)
            else None
            for one, said in pairs
        }


def _record(example: Example, said: Answered, at: int, verdict: Verdict, own: str) -> Record:
    response = said.responses[at] if said.responses else ""
    is_dialogue = not isinstance(response, str) and len(response) > 1
    return {
        "id": example.uid,
        "db_id": example.db_id,
        "question": example.question,
        "evidence": example.evidence,
        "prompt": said.prompt,
        "answer": [list(turn) for turn in response] if is_dialogue else whole_text(response),
        "finish_reason": said.finish_reasons[at] if said.finish_reasons else "",
        "sql": said.sqls[at] if said.sqls else None,
        "gold_sql": example.gold_sql,
        "own": own,
        **{key: value for key, value in dataclasses.asdict(verdict).items() if key not in ("uid", "sql")},
        "reasons": list(verdict.reasons),
        **({"fault": said.fault} if said.fault else {}),
        **({"finish_reasons": Counter(said.finish_reasons)} if len(said.finish_reasons) > 1 else {}),
    }


def _votes(example: Example, ballot: Ballot, choice: Choice, scores: list[float] | None) -> Record:
    """Return how a question was voted on, and how votes of each size would have ended; subsets are chosen by its id."""
    found: Record = {"samples": len(ballot.sqls), "votes": [list(vote) for vote in choice.votes[:_VOTES_SHOWN]]}
    if scores is None:
        return found
    n = len(scores)
    sizes = sorted({*(2**i for i in range(n.bit_length())), n})
    curve = vote_curve([ballot], [scores], sizes, seed=zlib.crc32(example.uid.encode()))
    passes = pass_curve([scores], sizes)
    return found | {
        "right": sum(value >= 1.0 for value in scores),
        "vote": {str(k): value for k, value in curve.items()},
        "pass": {str(k): value for k, value in passes.items()},
    }


def _not_asked(verdict: Verdict) -> Verdict:
    return dataclasses.replace(verdict, status=NOT_ASKED, scores=dict.fromkeys(verdict.scores, 0.0), reasons=())


def _first_rows(
    executor: SqlExecutor, examples: Sequence[Example], verdicts: Sequence[Verdict]
) -> list[dict[str, Record | None]]:
    """Return the first rows of each prediction and its gold; what ran a moment ago is mostly at hand.

    What was stopped is not run again for this.
    """
    rows = list(zip(examples, verdicts, strict=True))
    mine = [(as_run(v.sql, one) or "") if v.sql and v.status not in _STOPPED else "" for one, v in rows]
    golds = ["" if v.gold_status in _STOPPED else one.gold_sql for one, v in rows]
    found = executor.execute_many([(one.database, sql) for one, sql in zip(examples, mine, strict=True)])
    meant = executor.execute_many([(one.database, sql) for one, sql in zip(examples, golds, strict=True)])
    return [
        {
            "prediction": _shown(outcome, verdict.status),
            "gold": _table(example) if example.gold_tables else _shown(gold, verdict.gold_status),
        }
        for example, verdict, outcome, gold in zip(examples, verdicts, found, meant, strict=True)
    ]


def result_of(outcome: SqlOutcome) -> Record | None:
    """Return the first rows of a result as JSON can hold them, or its error; None where there was nothing to run."""
    return _shown(outcome, outcome.status)


def shown_row(row: Sequence[Cell]) -> list[Json]:
    """Return a row's cells as JSON can hold them, cut where they are long."""
    return [_cell(cell) for cell in row]


def _shown(outcome: SqlOutcome, status: str) -> Record | None:
    """Return the first rows of a result, or the error; None where there was nothing to run."""
    if status in _STOPPED:
        return {"error": status}
    if outcome.status == "no_sql":
        return None
    if outcome.status != "ok":
        return {"error": _cell(f"{outcome.status}: {outcome.error or ''}")}
    rows = outcome.rows[:ROWS] if outcome.row_count <= _COUNTED_ONLY else []
    return _cut(outcome.columns, rows, outcome.row_count)


def _table(example: Example) -> Record:
    columns, rows = example.gold_tables[0]
    return _cut(columns, rows[:ROWS], len(rows))


def _cut(columns: Sequence[str], rows: Sequence[Sequence[Cell]], count: int) -> Record:
    return {
        "columns": [_cell(name) for name in columns],
        "rows": [shown_row(row) for row in rows],
        "row_count": count,
    }


def _cell(value: Cell) -> Json:
    """Return a cell as JSON can hold it, cut where it is long."""
    if isinstance(value, bytes):
        return f"x'{value[: CELL // 2].hex()}'" + ("…" if len(value) > CELL // 2 else "")
    if isinstance(value, str):
        whole = value.encode("utf-8", errors="replace").decode()
        return whole if len(whole) <= CELL else whole[:CELL] + "…"
    return str(value) if isinstance(value, float) and not math.isfinite(value) else value


def verdict_of(record: Fields) -> Verdict:
    """Return the verdict that a record holds."""
    kept = {field.name: record[field.name] for field in dataclasses.fields(Verdict) if field.name != "uid"}
    return Verdict(uid=record["id"], **{**kept, "reasons": tuple(kept["reasons"])})


def response_of(record: Fields) -> Response:
    """Return the answer that a record holds: a text, or a dialogue."""
    answer = record["answer"]
    return answer if isinstance(answer, str) else [(role, text) for role, text in answer]


def example_of(record: Fields) -> Example:
    """Return what of an example its record holds: enough to group it by."""
    return Example(record["id"], record["db_id"], "", record["question"], record["gold_sql"])
