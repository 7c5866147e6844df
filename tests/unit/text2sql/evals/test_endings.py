"""Finish reasons of answers: shares, and the setting that a warning names."""

from __future__ import annotations

from functools import partial

import pytest

from jaxrl_sql.config import EvaluateSettings, SamplingConfig
from jaxrl_sql.text2sql.evals.endings import ending_metrics, finish_reasons, incomplete_warning, why_incomplete


def test_only_answers_with_a_finish_reason_are_counted() -> None:
    records = [
        {"finish_reason": "stop"},
        {"finish_reason": ""},
        {"finish_reason": "stop", "finish_reasons": {"stop": 2, "length": 1, "": 1}},
    ]
    assert finish_reasons(records) == {"stop": 3, "length": 1}
    assert ending_metrics({"stop": 3, "length": 1}) == {
        "truncated": 0.25, "finish_reason/stop": 3, "finish_reason/length": 1
    }  # fmt: skip
    assert ending_metrics({"turns": 2})["truncated"] == 0.0
    assert ending_metrics({}) == {}


GREEDY = partial(SamplingConfig, temperature=0.0, max_new_tokens=1024)
LIMIT = "truncated at the token limit: raise evaluate.sampling.max_new_tokens"


@pytest.mark.parametrize(
    ("reason", "cfg", "why"),
    [
        ("stop", EvaluateSettings(), ""),
        ("length", EvaluateSettings(sampling=GREEDY(max_new_tokens=7)), f"{LIMIT} above 7"),
        (
            "length",
            EvaluateSettings(sampling=GREEDY(turns=3, max_total_tokens=9000)),
            f"{LIMIT} above 1,024 (each turn) or evaluate.sampling.max_total_tokens above 9,000 (all turns)",
        ),
        (
            "length",
            EvaluateSettings(sampling=GREEDY(turns=3), base_url="http://x"),
            f"{LIMIT} above 1,024",
        ),
        (
            "turns",
            EvaluateSettings(sampling=GREEDY(turns=3)),
            "out of turns and without a solution: raise evaluate.sampling.turns above 3",
        ),
        ("content_filter", EvaluateSettings(), "truncated by the server's content filter"),
        ("eos", EvaluateSettings(), ""),
    ],
)
def test_warning_names_the_setting_to_raise(reason: str, cfg: EvaluateSettings, why: str) -> None:
    assert why_incomplete(reason, cfg) == why
    if why:
        assert incomplete_warning(2, 8, why) == f"warning: 2 of 8 answers (25.0%) are {why}"
        assert incomplete_warning(1, 8, why) == f"warning: 1 of 8 answers (12.5%) is {why}"
