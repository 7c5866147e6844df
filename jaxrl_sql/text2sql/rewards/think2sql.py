"""Think2SQL: rewards from execution accuracy (EX), QATCH's partial score and the format.

EX is the rule `refined`: rows are equal as multisets, after the cells of each row are sorted. QATCH is the graded rule
`qatch`: the mean of cell precision, cell recall and the ratio of the row counts, from 0 to 1.
"""

from __future__ import annotations

import re

from jaxrl_sql.text2sql.env.ports import ScoreRow
from jaxrl_sql.text2sql.rewards.extract import (
    ParsedResponse,
    fenced_blocks,
    ignore_tags_in_sql,
    policy_text,
    sql_blocks,
)
from jaxrl_sql.types import Response, Reward

RULES = ("refined", "qatch")
_FORM = re.compile(
    r"<(reasoning|think)>(?P<think>(?:(?!</\1>).)*)</\1>\s*<answer>(?P<answer>(?:(?!</?answer>).)*)</answer>",
    re.DOTALL | re.IGNORECASE,
)
_ANSWER = re.compile(r"<answer>((?:(?!</?answer>).)*)</answer>", re.DOTALL | re.IGNORECASE)
_FORMAT_SHARE = 0.05  # the weight of the format in EXFM and QAFM
_GATE = 0.1  # the QATCH score below which only the format counts, and the reward of a right format then


@ignore_tags_in_sql
def read_think2sql(response: Response) -> ParsedResponse:
    """Parse a response: search the SQL in the last closed answer, or in the whole text if there is no answer.

    The SQL is the last ```sql fence there, else the last other fence, else all of the text. Tags and fences may be in
    any case. The format is right iff the stripped text is one `<reasoning>…</reasoning>` (or `<think>…</think>`, for
    thinking models) and one `<answer>…</answer>`, separated by at most white space.
    """
    text = policy_text(response).strip()
    form = _FORM.fullmatch(text)
    answers = _ANSWER.findall(text)
    answer = answers[-1].strip() if answers else ""
    searched = answer if answers else text
    blocks = sql_blocks(searched, any_case=True) or fenced_blocks(searched)
    sql = (blocks[-1] if blocks else searched).strip(" \t\r\n`")
    return ParsedResponse(sql or None, form is not None, form["think"].strip() if form else "", answer)


def exfm_reward(parsed: ParsedResponse, row: ScoreRow) -> Reward:
    """Return the paper's EXFM: 0.95 EX + 0.05 format, both 0 or 1."""
    return _weighted_sum(row.matches("refined"), parsed, row)


def qafm_reward(parsed: ParsedResponse, row: ScoreRow) -> Reward:
    """Return the paper's QAFM: 0.95 QATCH + 0.05 format."""
    return _weighted_sum(row.value("qatch"), parsed, row)


def gate_reward(parsed: ParsedResponse, row: ScoreRow) -> Reward:
    """Return the paper's GATE: 0 for a failed query, else QATCH if it is above 0.1.

    With a lower QATCH, a right format has the reward 0.1 and a wrong format 0.
    """
    qatch = row.value("qatch")
    if not row.executes:
        total = 0.0
    elif qatch > _GATE:
        total = qatch
    else:
        total = _GATE if parsed.well_formed else 0.0
    return Reward(total, _parts(parsed, row))


def sparse_reward(parsed: ParsedResponse, row: ScoreRow) -> Reward:
    """Return Arctic's reward for this answer format: 1 for EX, else 0.1 for a query that runs in the right format.

    All other answers have the reward 0.
    """
    executes_in_form = row.executes and parsed.well_formed
    total = 1.0 if row.matches("refined") else _GATE if executes_in_form else 0.0
    return Reward(total, _parts(parsed, row))


def _weighted_sum(result: float, parsed: ParsedResponse, row: ScoreRow) -> Reward:
    return Reward((1.0 - _FORMAT_SHARE) * result + _FORMAT_SHARE * parsed.well_formed, _parts(parsed, row))


def _parts(parsed: ParsedResponse, row: ScoreRow) -> dict[str, float]:
    return {
        "correct": float(row.matches("refined")),
        "executes": float(row.executes),
        "format": float(parsed.well_formed),
        "partial": row.value("qatch"),
    }
