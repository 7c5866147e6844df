"""SkyRL-SQL: the form of a dialogue, then whether its solution is right; and how the database was asked on the way."""

from __future__ import annotations

import re
from collections.abc import Sequence

from jaxrl_sql.text2sql.env.ports import ScoreRow
from jaxrl_sql.text2sql.env.turns import asked_sql
from jaxrl_sql.text2sql.rewards.extract import ParsedResponse, enclosed, hiding_tags
from jaxrl_sql.types import Response, Reward

RULE = "bird"
_TAG = re.compile(r"</?(?:think|sql|observation|solution)>")
_THOUGHT = re.compile(r"\s*<think>(?:(?!<(?:think|sql|solution)>).)*?</think>", re.DOTALL)
# Any text without a tag; and a turn: a thought, perhaps more, and one query or solution at its end. Only the first may
# have words before its thought.
_PLAIN = r"(?:(?!</?(?:think|sql|observation|solution)>).)*"
_ACT = rf"<think>{_PLAIN}</think>(?:{_PLAIN}<think>{_PLAIN}</think>)*{_PLAIN}<(sql|solution)>{_PLAIN}</\1>\s*"
_FIRST, _NEXT = (re.compile(before + _ACT, re.DOTALL) for before in (_PLAIN, r"\s*"))
_LOOKUP = re.compile(r"\bpragma|\bsqlite_(?:master|schema)\b", re.IGNORECASE)


@hiding_tags
def read_skyrl_sql(response: Response) -> ParsedResponse:
    """Find the solution, which is run as it stands, the queries before it, and whether the dialogue's form is right.

    It is, as the paper's section 4 and Appendix A have it, iff each turn has a thought, which begins what is written
    after an observation, and ends with one `<sql>` or `<solution>`, the last one with the solution and no other, each
    tag closed before another is opened. An `<observation>` that the policy writes is a fault. What the environment said
    does not count: of a dialogue its turns, of a text what stands between `<observation>` and `</observation>`.

    Of a dialogue whose form is wrong the last solution that is closed is still read: it earns nothing, and evaluation
    may look at it.
    """
    turns = _turns(response)
    made = [(_NEXT if number else _FIRST).fullmatch(turn) for number, turn in enumerate(turns)]
    ends = [found[1] if found else "" for found in made]
    return _reading(turns, ends == [*["sql"] * (len(turns) - 1), "solution"])


@hiding_tags
def read_skyrl_sql_loose(response: Response) -> ParsedResponse:
    """Find the same, with a form that asks for less, nearly that of the released code.

    It is right iff there is exactly one `<solution>`, closed once, with no tag inside; at least one thought; and a
    thought, closed before anything else is opened, at the beginning of what is written after each observation. A turn
    may lack a query, and an observation may be invented.
    """
    turns = _turns(response)
    text = "".join(turns)
    solutions = enclosed(text, "<solution>", "</solution>")
    once = text.count("<solution>") == 1 == text.count("</solution>") == len(solutions)
    plain = once and _TAG.search(solutions[0]) is None
    answered = all(_THOUGHT.match(turn) for turn in turns[1:])
    return _reading(turns, plain and bool(enclosed(text, "<think>", "</think>")) and answered)


def _reading(turns: Sequence[str], well_formed: bool) -> ParsedResponse:
    text = "".join(turns)
    solutions = [found.strip() for found in enclosed(text, "<solution>", "</solution>")]
    thoughts = [found.strip() for found in enclosed(text, "<think>", "</think>")]
    queries = tuple(asked for turn in turns if (asked := asked_sql(turn)) is not None)
    solution = solutions[-1] if solutions else ""
    return ParsedResponse(solution or None, well_formed, "\n".join(thoughts), solution, queries)


def _turns(response: Response) -> Sequence[str]:
    """Return what the policy wrote, turn by turn; observations stand between the turns."""
    if isinstance(response, str):
        return _turns_of_text(response)
    turns = [""]
    for role, text in response:
        if role == "assistant":
            turns[-1] += text
        else:
            turns.append("")
    return turns


def _turns_of_text(rest: str) -> list[str]:
    turns: list[str] = []
    while True:
        before, _, after = rest.partition("<observation>")
        _, closing, following = after.partition("</observation>")
        if not closing:  # no observation is left, or one that never ends, which is text like any other
            return [*turns, rest]
        turns.append(before)
        rest = following


def skyrl_sql_reward(reading: ParsedResponse, row: ScoreRow) -> Reward:
    """Return -1 for a wrong form, 1 for a right result, else 0; the counts of `conduct` are among the parts."""
    executes, correct = row.executes, row.matches(RULE)
    total = float(correct) if reading.well_formed else -1.0
    parts = {"correct": correct, "executes": executes, "format": reading.well_formed, **conduct(reading)}
    return Reward(total, {name: float(value) for name, value in parts.items()})


def conduct(reading: ParsedResponse) -> dict[str, int]:
    """Count queries, look-ups of the schema among them, and those asked before; tell if the solution was never tried.

    Queries are the same when only white space, case and a semicolon at the end differ.
    """
    asked = [_same(sql) for sql in reading.queries]
    return {
        "queries": len(asked),
        "lookups": sum(_LOOKUP.search(sql) is not None for sql in asked),
        "repeated": len(asked) - len(set(asked)),
        "unprobed": int(reading.sql is not None and _same(reading.sql) not in asked),
    }


def _same(sql: str) -> str:
    return " ".join(sql.lower().split()).removesuffix(";").rstrip()
