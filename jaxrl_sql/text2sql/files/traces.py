"""A teacher's answers for supervised learning: JSON lines of id, reasoning and SQL, as `jaxrl-sql distill` writes."""

from __future__ import annotations

import dataclasses
import re
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import NamedTuple

from jaxrl_sql.text2sql.files.jsonl import records, text
from jaxrl_sql.types import CUT, Example, InputError


class Trace(NamedTuple):
    """A thought and the SQL that it leads to, SQLite's."""

    reasoning: str
    sql: str


def load_traces(path: str | Path) -> dict[str, list[Trace]]:
    """Read the traces of each question, in the order of the file; raises InputError for other lines and cut traces."""
    found: dict[str, list[Trace]] = {}
    for number, record in records(Path(path)):
        uid, reasoning, sql = text(record.get("id")), record.get("reasoning", ""), record.get("sql")
        if not uid or not isinstance(reasoning, str) or not isinstance(sql, str) or not sql.strip():
            raise InputError(f"{path}:{number}: a trace has an id, a reasoning and a sql")
        if (reason := text(record.get("finish_reason"))) in CUT:
            raise InputError(f"{path}:{number}: finish_reason={reason} reports a trace that is cut: leave it out")
        found.setdefault(uid, []).append(Trace(reasoning.strip(), sql.strip()))
    return found


_THOUGHT = re.compile(r"<(think|reasoning)>(.*?)</\1>", re.DOTALL | re.IGNORECASE)
_ANSWER = re.compile(r"<(answer|solution)>(.*)</\1>", re.DOTALL | re.IGNORECASE)
_FENCE = re.compile(r"```(?:sql|sqlite)?[ \t]*\n(.*?)```", re.DOTALL | re.IGNORECASE)


def trace_of(text: str) -> Trace | None:
    """Take a written answer apart: a thought in tags, think or reasoning, and SQL in answer's, fenced or bare.

    Without tags the thought is what stands before the last fenced block. None where there is no SQL.
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
    """Let traces take the place of what examples teach; the second of a question makes an example more, `<id>#2`."""
    taught = []
    for example in examples:
        own = traces.get(example.uid)
        if not own:
            taught.append(example)
        for number, trace in enumerate(own or (), start=1):
            uid = example.uid if number == 1 else f"{example.uid}#{number}"
            taught.append(dataclasses.replace(example, uid=uid, reasoning=trace.reasoning, demonstration=trace.sql))
    return taught
