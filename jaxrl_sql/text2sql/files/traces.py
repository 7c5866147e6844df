"""Traces: a teacher's answers for supervised learning, as JSON lines of id, reasoning and SQL (`jaxrl-sql distill`)."""

from __future__ import annotations

import dataclasses
import re
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import NamedTuple

from jaxrl_sql.text2sql.files.jsonl import records, text
from jaxrl_sql.types import TRUNCATED_REASONS, Example, InputError


class Trace(NamedTuple):
    """A teacher's reasoning and the resulting SQL in SQLite's dialect."""

    reasoning: str
    sql: str


def load_traces(path: str | Path) -> dict[str, list[Trace]]:
    """Read the traces of each question in file order; raises InputError for invalid lines and truncated traces."""
    traces: dict[str, list[Trace]] = {}
    for number, record in records(Path(path)):
        uid, reasoning, sql = text(record.get("id")), record.get("reasoning", ""), record.get("sql")
        if not uid or not isinstance(reasoning, str) or not isinstance(sql, str) or not sql.strip():
            raise InputError(f"{path}:{number}: a trace needs id, reasoning and sql")
        if (reason := text(record.get("finish_reason"))) in TRUNCATED_REASONS:
            raise InputError(f"{path}:{number}: finish_reason={reason} reports a truncated trace: remove it")
        traces.setdefault(uid, []).append(Trace(reasoning.strip(), sql.strip()))
    return traces


_THOUGHT = re.compile(r"<(think|reasoning)>(.*?)</\1>", re.DOTALL | re.IGNORECASE)
_ANSWER = re.compile(r"<(answer|solution)>(.*)</\1>", re.DOTALL | re.IGNORECASE)
_FENCE = re.compile(r"```(?:sql|sqlite)?[ \t]*\n(.*?)```", re.DOTALL | re.IGNORECASE)


def trace_of(text: str) -> Trace | None:
    """Parse an answer: its reasoning in `think` or `reasoning` tags, and its SQL in `answer` or `solution` tags.

    The SQL may be in a fenced block (```sql). Of several blocks, the last one counts. In an answer without tags, the
    reasoning is the text before that block. Returns None if there is no SQL.
    """
    thought, answer = _THOUGHT.search(text), _ANSWER.search(text)
    rest = answer[2] if answer else text[thought.end() :] if thought else text
    fences = list(_FENCE.finditer(rest))
    if fences:
        before = "" if answer or thought else rest[: fences[-1].start()]
        sql = fences[-1][1].strip()
    else:
        before, sql = "", rest.strip() if answer or thought else ""
    if not sql:
        return None
    return Trace((thought[2] if thought else before).strip(), sql)


def with_traces(examples: Sequence[Example], traces: Mapping[str, Sequence[Trace]]) -> list[Example]:
    """Replace the targets of examples by traces, which map ids to the question's traces.

    The example has the first trace. Each further trace adds an example with the id `<id>#2`, `<id>#3` and so on. An
    example without traces stays unchanged.
    """
    expanded = []
    for example in examples:
        traces_of_example = traces.get(example.uid)
        if not traces_of_example:
            expanded.append(example)
        for number, trace in enumerate(traces_of_example or (), start=1):
            uid = example.uid if number == 1 else f"{example.uid}#{number}"
            expanded.append(dataclasses.replace(example, uid=uid, reasoning=trace.reasoning, demonstration=trace.sql))
    return expanded
