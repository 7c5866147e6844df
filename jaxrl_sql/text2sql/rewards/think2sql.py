"""Think2SQL: rewards from execution accuracy (EX), QATCH's partial score and the format."""

from __future__ import annotations

import re

from jaxrl_sql.text2sql.env.ports import ScoreRow
from jaxrl_sql.text2sql.rewards.extract import ParsedResponse, fenced_blocks, ignore_tags_in_sql, policy_text, sql_blocks
from jaxrl_sql.types import Response, Reward

RULES = ("refined", "qatch")
_FORM = re.compile(
    r"<(reasoning|think)>(?P<think>(?:(?!</\1>).)*)</\1>\s*<answer>(?P<answer>(?:(?!</?answer>).)*)</answer>",
    re.DOTALL | re.IGNORECASE,
)
_ANSWER = re.compile(r"<answer>((?:(?!</?answer>).)*)</answer>", re.DOTALL | re.IGNORECASE)
_FORMAT_SHARE = 0.05
_GATE = 0.1


@ignore_tags_in_sql
def read_think2sql(response: Response) -> ParsedResponse:
    """Parse a response: the SQL is in the last closed answer, or else the whole text.

    It is the last ```sql fence there, else the last other fence, else all of the text. Tags and fences may be in any
    case. The format is right iff the stripped text is one `<reasoning>…</reasoning>` (or `<think>…</think>`, for
    thinking models) and one `<answer>…</answer>`, separated by at most white space.
    """
    text = policy_text(response).strip()
    form = _FORM.fullmatch(text)
    answers = _ANSWER.findall(text)
    answer = answers[-1].strip() if answers else ""
    body = answer if answers else text
    blocks = sql_blocks(body, any_case=True) or fenced_blocks(body)
    sql = (blocks[-1] if blocks else body).strip(" \t\r\n`")
    return ParsedResponse(sql or None, form is not None, form["think"].strip() if form else "", answer)


def exfm_reward(parsed: ParsedResponse, row: ScoreRow) -> Reward:
    """Return 0.95 EX + 0.05 format."""
    return _shares(row.matches("refined"), parsed, row)


def qafm_reward(parsed: ParsedResponse, row: ScoreRow) -> Reward:
    """Return 0.95 QATCH + 0.05 format."""
    return _shares(row.value("qatch"), parsed, row)


def gate_reward(parsed: ParsedResponse, row: ScoreRow) -> Reward:
    """Return 0 for a failed query, QATCH if it is above 0.1, else 0.1 for a right format and 0 for a wrong one."""
    qatch = row.value("qatch")
    if not row.executes:
        total = 0.0
    elif qatch > _GATE:
        total = qatch
    else:
        total = _GATE if parsed.well_formed else 0.0
    return Reward(total, _parts(parsed, row))


def sparse_reward(parsed: ParsedResponse, row: ScoreRow) -> Reward:
    """Return Arctic's reward in this form: 1 for EX, else 0.1 for a query that runs in the right format, else 0."""
    executes_in_form = row.executes and parsed.well_formed
    total = 1.0 if row.matches("refined") else _GATE if executes_in_form else 0.0
    return Reward(total, _parts(parsed, row))


def _shares(result: float, parsed: ParsedResponse, row: ScoreRow) -> Reward:
    return Reward((1.0 - _FORMAT_SHARE) * result + _FORMAT_SHARE * parsed.well_formed, _parts(parsed, row))


def _parts(parsed: ParsedResponse, row: ScoreRow) -> dict[str, float]:
    return {
        "correct": float(row.matches("refined")),
        "executes": float(row.executes),
        "format": float(parsed.well_formed),
        "partial": row.value("qatch"),
    }
