"""The metrics that runs write have rows in the reference, and the other way round.

`conftest.py` fails a run that writes a metric without a row. This file checks that the small run writes each metric
of its settings; metrics of other settings are asserted by the tests of such runs.
"""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from jaxrl_sql.runtime.metric_row import all_metrics, find_metric
from jaxrl_sql.runtime.metrics import MetricsWriter
from jaxrl_sql.runtime.training_metrics import EVAL, EVERY, GRPO, ROLLOUT, SFT, STEPS, TRAINING

TESTS = Path(__file__).parents[1]
WHOLE = {EVERY, SFT, STEPS, GRPO, ROLLOUT, EVAL, "`grpo.kl.coef` above 0"}
COMPILING = "lines with compilations"
ELSEWHERE = {
    "recipes with partial credit": "e2e/test_stages.py",
    "`recipe=skyrl_sql`": "e2e/test_stages.py",
    "`grpo.algorithm=ppo`": "unit/algo/test_updates.py",
    "`grpo.demonstrations=true`": "e2e/test_stages.py",
    "`rollout.ahead=1`": "e2e/test_stages.py",
    "`sft.held_out` above 0": "e2e/test_sft.py",
    COMPILING: "unit/runtime/test_progress.py",
    "answers of more than 256 tokens": "unit/algo/test_loss.py",
    "evaluations whose database fails": "unit/text2sql/rewards/test_verdicts.py",
    "`recipe=sql_r1`, its variants, and `think2sql_sql_r1`": "unit/runtime/test_metric_rows.py",
    "a reward function of the Python API": "unit/runtime/test_metric_rows.py",
    "an own recipe or reward function": "unit/runtime/test_metric_rows.py",
}


def test_a_run_writes_the_metrics_of_its_settings(whole: Path) -> None:
    rows = [json.loads(line) for line in (whole / "metrics.jsonl").read_text(encoding="utf-8").splitlines()]
    written = {find_metric(name, TRAINING) for line in rows for name in line}
    # An earlier test may have compiled all programs.
    of_compilations = {row for row in all_metrics(TRAINING) if row.when == COMPILING}
    assert written - of_compilations == {row for row in all_metrics(TRAINING) if row.when in WHOLE}


def test_metrics_of_other_settings_are_asserted_in_other_tests() -> None:
    assert {row.when for row in all_metrics(TRAINING)} == WHOLE | ELSEWHERE.keys()
    for when, file in ELSEWHERE.items():
        text = (TESTS / file).read_text(encoding="utf-8")
        names = [row.name.partition("<")[0].removeprefix("eval/") for row in all_metrics(TRAINING) if row.when == when]
        assert [name for name in names if name.lstrip("/") not in text] == [], file


def test_a_metric_without_a_row_fails_the_run(tmp_path: Path) -> None:
    with MetricsWriter(tmp_path) as metrics, pytest.raises(AssertionError, match="policy/undescribed"):
        metrics.write(1, {"policy/loss": 0.0, "policy/undescribed": 0.0})
