"""Answer formats that several recipes share: a thought (the reasoning), then a query in a code block."""

from __future__ import annotations

THINK_ANSWER = (
    "Think step by step between <think> and </think>. Then write the query between <answer> and </answer>, "
    "in a code block that begins with ```sql and ends with ```."
)


def add_fence(sql: str) -> str:
    """Return a query in a code block."""
    return f"```sql\n{sql}\n```"


def thought_and_answer(reasoning: str, sql: str, tag: str = "think") -> str:
    """Return a target answer: the reasoning between `<tag>` and `</tag>`, then the fenced query in `<answer>` tags."""
    return f"<{tag}>\n{reasoning}\n</{tag}>\n<answer>\n{add_fence(sql)}\n</answer>"
