"""Count answers by `finish_reason`: the share of truncated answers, and the setting to raise.

A reason is `stop`, `length` (a token limit), OUT_OF_TURNS (a dialogue without a solution in its last turn), or another
value of an endpoint's server. Predictions from a file have "".
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Mapping

from jaxrl_sql.config import EvaluateSettings
from jaxrl_sql.runtime.progress import agree, quantity
from jaxrl_sql.types import OUT_OF_TURNS, Fields


def finish_reasons(records: Iterable[Fields]) -> Counter[str]:
    """Count the answers of records by finish reason, without answers that have none.

    A record of several answers has their counts in `finish_reasons`.
    """
    counts: Counter[str] = Counter()
    for record in records:
        counts.update(record.get("finish_reasons") or {record["finish_reason"]: 1})
    del counts[""]
    return counts


def ending_metrics(counts: Mapping[str, int]) -> dict[str, float]:
    """Return `truncated`, the share of answers truncated at a token limit, and `finish_reason/<name>` counts.

    Empty if no reason is known.
    """
    total = sum(counts.values())
    if not total:
        return {}
    named = {name: float(counts.get(name, 0)) for name in dict.fromkeys(("stop", "length", *counts))}
    share = named["length"] / total
    return {"truncated": share, **{f"finish_reason/{name}": count for name, count in named.items()}}


def why_incomplete(reason: str, cfg: EvaluateSettings, tokens: int = 0) -> str:
    """Return why an answer of `tokens` (0: unknown) is incomplete, with the setting to raise; "" if it is complete."""
    sampling = cfg.sampling
    if reason == "length":
        settings = f"evaluate.sampling.max_new_tokens above {sampling.max_new_tokens:,}"
        if sampling.turns > 1 and not cfg.base_url:
            settings += f" (each turn) or evaluate.sampling.max_total_tokens above {sampling.max_total_tokens:,}"
            settings += " (all turns)"
        return truncation_cause(settings, tokens)
    if reason == OUT_OF_TURNS:
        return f"out of turns and without a solution: raise evaluate.sampling.turns above {sampling.turns}"
    return "truncated by the server's content filter" if reason == "content_filter" else ""


def truncation_cause(settings: str, tokens: int = 0) -> str:
    """Return the cause "truncated …" with `settings`, the text of the token limit's settings and their values.

    `tokens` is the length of the truncated answer, or 0 if it is unknown.
    """
    point = f"after {quantity(tokens, 'tokens')}" if tokens else "at the token limit"
    return f"truncated {point}: raise {settings}"


def incomplete_warning(count: int, total: int, cause: str, what: str = "answers") -> str:
    """Return a warning that `count` of `total` answers are incomplete, with a cause such as `truncation_cause`."""
    return f"warning: {count:,} of {total:,} {what} ({count / total:.1%}) {agree(count, 'are')} {cause}"
