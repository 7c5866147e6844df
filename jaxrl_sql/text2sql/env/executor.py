"""Create executors; everything else in the project takes an executor as an argument."""

from __future__ import annotations

from collections.abc import Sequence

from jaxrl_sql.config import ExecutorConfig
from jaxrl_sql.text2sql.env.hiding import hidden_columns
from jaxrl_sql.text2sql.env.ports import ScoreRow
from jaxrl_sql.types import Fields
from sqlexec_rs import RULE_NAMES, STATUS_NAMES, STOP_NAMES, Executor, ExecutorError, Limits, Outcome
from sqlexec_rs.servers import revoke_script

__all__ = [
    "RULE_NAMES",
    "SOUND_RULES",
    "Executor",
    "ExecutorError",
    "Limits",
    "Outcome",
    "exploratory",
    "make_executor",
    "revoke_script",
    "score_rows",
    "timing_executor",
]


SOUND_RULES = tuple(rule for rule in RULE_NAMES if rule != "defog")
"""The rules by which a result equals itself but not an empty result.

These are all rules but `defog`: as in its published scorer, an empty result may be right for a gold with rows.
"""

# The limits of an answer divided by those of an exploratory query.
_EXPLORATORY_DIVISOR = 6


def make_executor(config: ExecutorConfig, hide: Sequence[str] = ()) -> Executor:
    """Start an executor with the limits of `config`; 0 threads means one per core.

    A limit of time or steps is disabled by 0. The executor refuses queries that read a column of `hide` (`data.hide`).
    """
    engine_limits = Limits(config.engine_timeout_ms or None, max_rows=config.max_rows, max_bytes=config.max_bytes)
    limits = engine_limits.replace(
        timeout_ms=config.timeout_ms or None, vm_steps=config.vm_steps or None, other_engines=engine_limits
    )
    return Executor(
        threads=config.threads or None,
        limits=limits,
        isolation=config.isolation,
        sqlite_version=config.sqlite_version or None,
        hide=hidden_columns(hide),
    )


def timing_executor(executor: Executor) -> Executor:
    """Return another executor with the same limits, without a cache and with one thread, for measurements."""
    return Executor(
        threads=1,
        limits=executor.limits,
        isolation=executor.isolation,
        cache_bytes=0,
        sqlite_version=executor.sqlite_version,
        hide=executor.hide,
    )


def exploratory(limits: Limits) -> Limits:
    """Return limits for exploratory queries of a multi-turn answer: a sixth of the answer's, so 5 s instead of 30 s.

    If the steps of SQLite's virtual machine are limited, only that limit is reduced. The time limit stays, since
    observations must not depend on the machine's speed. Other engines do not count steps.
    """
    if limits.other_engines:
        limits = limits.replace(other_engines=exploratory(limits.other_engines))
    if limits.vm_steps:
        return limits.replace(vm_steps=max(1, limits.vm_steps // _EXPLORATORY_DIVISOR))
    if limits.timeout_ms:
        return limits.replace(timeout_ms=max(1, limits.timeout_ms // _EXPLORATORY_DIVISOR))
    return limits


def score_rows(columns: Fields, rules: Sequence[str]) -> list[ScoreRow]:
    """Convert the result of `score_many` to a row per prediction.

    `columns` has arrays [N] for N predictions: `pred_status`, `gold_status` and `pred_stop`, which are indices of
    names, and a value per rule.
    """
    statuses = zip(columns["pred_status"].tolist(), columns["gold_status"].tolist(), strict=True)
    stops = columns["pred_stop"].tolist()
    values = zip(*(columns[rule].tolist() for rule in rules), strict=True)
    return [
        ScoreRow(
            STATUS_NAMES[pred],
            STATUS_NAMES[gold],
            dict(zip(rules, scores, strict=True)),
            STOP_NAMES[stop] if stop else "",
        )
        for (pred, gold), stop, scores in zip(statuses, stops, values, strict=True)
    ]
