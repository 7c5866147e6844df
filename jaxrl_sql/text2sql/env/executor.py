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
"""The rules by which a result equals itself but not an empty result: all but `defog`, which follows its scorer."""

_LOOK_SHARE = 6


def make_executor(config: ExecutorConfig, hide: Sequence[str] = ()) -> Executor:
    """Start an executor with the limits of a run; 0 threads means one per core, and a time limit of 0 disables it.

    The executor refuses queries that read a column of `hide` (`data.hide`).
    """
    elsewhere = Limits(config.engine_timeout_ms or None, max_rows=config.max_rows, max_bytes=config.max_bytes)
    limits = elsewhere.replace(
        timeout_ms=config.timeout_ms or None, vm_steps=config.vm_steps or None, other_engines=elsewhere
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
    """Return limits for exploratory queries, a sixth of an answer's: 5 s instead of 30 s.

    If steps are limited, only their limit is reduced, since observations must not depend on the machine's speed. Other
    engines do not count steps.
    """
    if limits.other_engines:
        limits = limits.replace(other_engines=exploratory(limits.other_engines))
    if limits.vm_steps:
        return limits.replace(vm_steps=max(1, limits.vm_steps // _LOOK_SHARE))
    if limits.timeout_ms:
        return limits.replace(timeout_ms=max(1, limits.timeout_ms // _LOOK_SHARE))
    return limits


def score_rows(columns: Fields, rules: Sequence[str]) -> list[ScoreRow]:
    """Convert the arrays [N] of `score_many` to N rows, with status names and a value per rule."""
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
