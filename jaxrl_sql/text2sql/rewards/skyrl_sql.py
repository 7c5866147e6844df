"""SkyRL-SQL: rewards for a dialogue's format and the correctness of its solution, and counts of its queries.

In each turn the policy writes a thought (`<think>`) and then a query (`<sql>`), whose result the environment returns as
an `<observation>`, or its final query (`<solution>`).
"""

from __future__ import annotations

import re
from collections.abc import Sequence

from jaxrl_sql.text2sql.env.ports import ScoreRow
from jaxrl_sql.text2sql.env.turns import final_query
from jaxrl_sql.text2sql.rewards.extract import ParsedResponse, find_enclosed, ignore_tags_in_sql
from jaxrl_sql.types import Response, Reward

RULE = "bird"
"""The comparison of results: rows as sets, as in BIRD's script."""
_TAG = re.compile(r"</?(?:think|sql|observation|solution)>")
_THOUGHT = re.compile(r"\s*<think>(?:(?!<(?:think|sql|solution)>).)*?</think>", re.DOTALL)
# `_PLAIN` is any text without a tag. `_ACT` is a turn: at least one thought, then one query or solution at its end.
# Only the first turn may have text before its thought.
_PLAIN = r"(?:(?!</?(?:think|sql|observation|solution)>).)*"
_ACT = rf"<think>{_PLAIN}</think>(?:{_PLAIN}<think>{_PLAIN}</think>)*{_PLAIN}<(sql|solution)>{_PLAIN}</\1>\s*"
_FIRST, _NEXT = (re.compile(before + _ACT, re.DOTALL) for before in (_PLAIN, r"\s*"))
# Queries that look up the schema.
_LOOKUP = re.compile(r"\bpragma|\bsqlite_(?:master|schema)\b", re.IGNORECASE)


@ignore_tags_in_sql
def read_skyrl_sql(response: Response) -> ParsedResponse:
    """Parse a dialogue: the solution (unmodified SQL), the queries before it, and whether the format is right.

    The format (section 4 and Appendix A of the paper) is right iff each turn has a thought and ends with one `<sql>` or
    `<solution>`. After an observation, the text starts with the thought. Only the last turn has the solution, and each
    tag is closed before the next opens. An `<observation>` by the policy is an error. Observations by the environment
    do not count: its turns in a dialogue, and text between `<observation>` and `</observation>` in a plain text.

    With a wrong format, the last closed solution is still extracted: it gets no reward, but evaluation may use it.
    """
    turns = _split_turns(response)
    matches = [(_NEXT if number else _FIRST).fullmatch(turn) for number, turn in enumerate(turns)]
    ends = [match[1] if match else "" for match in matches]  # "sql", "solution", or "" for a wrong format
    return _parse_turns(turns, ends == [*["sql"] * (len(turns) - 1), "solution"])


@ignore_tags_in_sql
def read_skyrl_sql_loose(response: Response) -> ParsedResponse:
    """Parse a dialogue with a looser format, close to that of the released code.

    The format is right iff three conditions hold. There is exactly one `<solution>`, closed once, without tags inside.
    There is at least one thought. The text after each observation starts with a thought that is closed before another
    tag opens. A turn may lack a query, and the policy may write observations.
    """
    turns = _split_turns(response)
    text = "".join(turns)
    solutions = find_enclosed(text, "<solution>", "</solution>")
    is_closed_once = text.count("<solution>") == 1 == text.count("</solution>") == len(solutions)
    has_plain_solution = is_closed_once and _TAG.search(solutions[0]) is None
    starts_with_thoughts = all(_THOUGHT.match(turn) for turn in turns[1:])
    return _parse_turns(
        turns, has_plain_solution and bool(find_enclosed(text, "<think>", "</think>")) and starts_with_thoughts
    )


def _parse_turns(turns: Sequence[str], well_formed: bool) -> ParsedResponse:
    text = "".join(turns)
    solutions = [text.strip() for text in find_enclosed(text, "<solution>", "</solution>")]
    thoughts = [text.strip() for text in find_enclosed(text, "<think>", "</think>")]
    queries = tuple(query for turn in turns if (query := final_query(turn)) is not None)
    solution = solutions[-1] if solutions else ""
    return ParsedResponse(solution or None, well_formed, "\n".join(thoughts), solution, queries)


def _split_turns(response: Response) -> Sequence[str]:
    """Return the policy's text by turn; observations separate turns."""
    if isinstance(response, str):
        return _split_text(response)
    turns = [""]
    for role, text in response:
        if role == "assistant":
            turns[-1] += text
        else:
            turns.append("")
    return turns


def _split_text(remaining: str) -> list[str]:
    """Return the texts before, between and after the observations of a plain text."""
    turns: list[str] = []
    while True:
        before, _, after = remaining.partition("<observation>")
        _, closing, following = after.partition("</observation>")
        if not closing:  # no complete observation remains; an unclosed one is ordinary text
            return [*turns, remaining]
        turns.append(before)
        remaining = following


def skyrl_sql_reward(parsed: ParsedResponse, row: ScoreRow) -> Reward:
    """Return -1 for a wrong format, 1 for a right result, else 0; the parts include the counts of `count_behaviour`."""
    executes, correct = row.executes, row.matches(RULE)
    total = float(correct) if parsed.well_formed else -1.0
    parts = {"correct": correct, "executes": executes, "format": parsed.well_formed, **count_behaviour(parsed)}
    return Reward(total, {name: float(value) for name, value in parts.items()})


def count_behaviour(parsed: ParsedResponse) -> dict[str, int]:
    """Count `queries`, schema look-ups (`lookups`) and `repeated` queries of a dialogue.

    `unprobed` is 1 if there is a solution that was never run as a query, else 0. Queries are equal if they differ only
    in white space, case and a final semicolon.
    """
    queries = [_normalize(sql) for sql in parsed.queries]
    return {
        "queries": len(queries),
        "lookups": sum(_LOOKUP.search(sql) is not None for sql in queries),
        "repeated": len(queries) - len(set(queries)),
        "unprobed": int(parsed.sql is not None and _normalize(parsed.sql) not in queries),
    }


def _normalize(sql: str) -> str:
    return " ".join(sql.lower().split()).removesuffix(";").rstrip()
