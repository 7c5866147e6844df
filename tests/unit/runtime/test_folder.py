"""Which numbers may be others when a run goes on."""

from __future__ import annotations

from pathlib import Path

import pytest

from jaxrl_sql.config import changed, load_config, to_yaml
from jaxrl_sql.runtime.folder import open_folder, with_found_numbers
from jaxrl_sql.types import InputError

SECOND = ("second_stage.steps=2", "validation.every=2", "run.keep_best=1")
FIXED = "grpo.optim.schedule=linear"


@pytest.mark.parametrize(
    ("began", "now", "is_free"),
    [
        ((), "validation.every=3", True),
        (SECOND, "validation.every=3", False),  # the second stage begins from the best that was evaluated
        (SECOND, "run.keep_best=2", False),
        ((), "run.keep_best=2", True),
        ((), "sft.eval_every=3", True),
        (("sft.patience=2", "sft.held_out=0.1", "sft.eval_every=2"), "sft.eval_every=3", False),
        ((), "grpo.steps=120", True),
        ((FIXED,), "grpo.steps=120", False),
        ((), "grpo.num_generations=4", False),
        ((), "seed=1", False),
        ((), "health.zero_advantage_patience=7", True),
        (("model.checkpoint=here",), "model.checkpoint=there", True),  # `run.inputs` looks at what lies there
        (("data.prompt=chat", "data.date=2024-02-09"), "data.date=2024-02-10", False),
    ],
)
def test_a_run_goes_on_with_the_numbers_that_decide_what_it_computes(
    began: tuple[str, ...], now: str, is_free: bool, tmp_path: Path
) -> None:
    (tmp_path / "config.yaml").write_text(to_yaml(load_config(None, [f"run.dir={tmp_path}", *began])))
    (tmp_path / "metrics.jsonl").write_text('{"step": 1}\n')
    (tmp_path / "checkpoints" / "1").mkdir(parents=True)
    config = load_config(None, [f"run.dir={tmp_path}", "run.resume=true", *began, now])
    if is_free:
        open_folder(config, is_first=False)
    else:
        with pytest.raises(InputError, match=now.partition("=")[0]):
            open_folder(config, is_first=False)


def test_a_run_keeps_its_date_and_where_it_read_until_that_is_compared(tmp_path: Path) -> None:
    began = ("data.prompt=chat", "data.date=2024-02-09", "model.checkpoint=here", "run.resume=true")
    (tmp_path / "config.yaml").write_text(to_yaml(load_config(None, [f"run.dir={tmp_path}", *began])))
    config = load_config(None, [f"run.dir={tmp_path}", "data.prompt=chat", "model.checkpoint=there", "run.resume=true"])
    assert with_found_numbers(config).data.date == "2024-02-09"
    assert with_found_numbers(changed(config, {"run.resume": False})).data.date == ""
    (tmp_path / "checkpoints" / "1").mkdir(parents=True)
    open_folder(with_found_numbers(config), is_first=True)
    assert load_config(tmp_path / "config.yaml").model.checkpoint == "here"
