"""Run folders: settings that may change when a run resumes, and runs without checkpoints."""

from __future__ import annotations

import dataclasses
import json
import shutil
from itertools import product
from pathlib import Path

import pytest

from jaxrl_sql.config import TrainConfig, load_config, replace_values, to_yaml
from jaxrl_sql.config.check import values_by_key
from jaxrl_sql.runtime import folder as folders
from jaxrl_sql.runtime.folder import BLOCKS, note_saved, paths_from_start, refuse_edited_settings, settings_from_start
from jaxrl_sql.types import InputError

SMALL = Path(__file__).parents[2] / "small.yaml"

SECOND = ("second_stage.steps=2", "validation.every=2", "run.keep_best=1")
FIXED = "grpo.optim.schedule=linear"


def with_settings_from_start(config: TrainConfig) -> TrainConfig:
    return replace_values(config, settings_from_start(config.run, config.data.chat.date, config.rollout, config.model))


def check_folder(config: TrainConfig) -> Path:
    return folders.check_folder(config.run, values_by_key(config))


def open_folder(config: TrainConfig, is_first: bool) -> None:
    text = to_yaml(replace_values(config, paths_from_start(config.run)))
    folders.open_folder(config.run, values_by_key(config), text, is_first)


@pytest.mark.parametrize(
    ("began", "now", "is_free"),
    [
        ((), "validation.every=3", True),
        (SECOND, "validation.every=3", False),  # the second stage starts from the best evaluated checkpoint
        (SECOND, "run.keep_best=2", False),
        ((), "run.keep_best=2", True),
        ((), "sft.eval_every=3", True),
        (("sft.patience=2", "sft.held_out=0.1", "sft.eval_every=2"), "sft.eval_every=3", False),
        ((), "grpo.steps=120", True),
        ((FIXED,), "grpo.steps=120", False),
        ((), "grpo.num_generations=4", False),
        ((), "seed=1", False),
        ((), "health.zero_advantage_patience=7", True),
        (("model.checkpoint=here",), "model.checkpoint=there", True),  # `training.inputs` checks the files there
        (("data.prompt=chat", "data.chat.date=2024-02-09"), "data.chat.date=2024-02-10", False),
    ],
)
def test_resumed_run_rejects_changes_of_settings_that_affect_results(
    began: tuple[str, ...], now: str, is_free: bool, tmp_path: Path
) -> None:
    (tmp_path / "config.yaml").write_text(to_yaml(load_config(TrainConfig, SMALL, [f"run.dir={tmp_path}", *began])))
    (tmp_path / "metrics.jsonl").write_text('{"step": 1}\n')
    (tmp_path / "checkpoints" / "1").mkdir(parents=True)
    config = load_config(TrainConfig, SMALL, [f"run.dir={tmp_path}", "run.resume=true", *began, now])
    if is_free:
        open_folder(config, is_first=False)
    else:
        with pytest.raises(InputError, match=now.partition("=")[0]):
            open_folder(config, is_first=False)


GIVEN = {"mesh": "4x1", "prompt_blocks": 400, "completion_blocks": 64, "prefix_blocks": 32}
FOUND = {"mesh": "training", "prompt_blocks": 56, "completion_blocks": 24, "prefix_blocks": 8}


@pytest.mark.parametrize("names", [*product(*((name, "") for name in GIVEN))], ids=",".join)
def test_same_command_resumes_with_any_explicit_layout_and_blocks(names: tuple[str, ...], tmp_path: Path) -> None:
    command = [f"run.dir={tmp_path}", "run.resume=true"]
    command += [f"rollout.{name}={GIVEN[name]}" for name in names if name]
    began = load_config(TrainConfig, SMALL, command)
    all_known = began.rollout.prompt_blocks and began.rollout.completion_blocks
    blocks = {} if all_known else {name: getattr(began.rollout, name) or FOUND[name] for name in BLOCKS}
    mesh = GIVEN["mesh"] if "mesh" in names else FOUND["mesh"]
    explicit = replace_values(
        began, {"rollout.mesh": mesh, **{f"rollout.{name}": value for name, value in blocks.items()}}
    )
    (tmp_path / "config.yaml").write_text(to_yaml(explicit))
    assert with_settings_from_start(began) == began, "a run without a checkpoint determines them again"
    (tmp_path / "checkpoints" / "1").mkdir(parents=True)
    again = with_settings_from_start(began)
    assert again.rollout == explicit.rollout
    open_folder(again, is_first=False)
    for name in filter(None, names):
        other = "2x2" if name == "mesh" else 48
        with pytest.raises(
            InputError, match=rf"these settings differ from those of the run: rollout\.{name} \([^()]*\); a resumed run"
        ):
            open_folder(with_settings_from_start(replace_values(began, {f"rollout.{name}": other})), False)


def test_changed_memory_share_is_rejected_by_name(tmp_path: Path) -> None:
    (tmp_path / "config.yaml").write_text(
        to_yaml(
            replace_values(load_config(TrainConfig, SMALL), {f"rollout.{name}": value for name, value in FOUND.items()})
        )
    )
    (tmp_path / "checkpoints" / "1").mkdir(parents=True)
    again = load_config(TrainConfig, SMALL, [f"run.dir={tmp_path}", "run.resume=true", "rollout.memory=0.2"])
    with pytest.raises(
        InputError,
        match=r"these settings differ from those of the run: rollout\.memory \(0\.4 then, 0\.2 now\); a resumed run",
    ):
        open_folder(with_settings_from_start(again), is_first=False)


@pytest.mark.parametrize("left", ["nothing", "an empty folder", "an unfinished save of a later step"])
def test_run_with_deleted_checkpoints_does_not_restart(left: str, tmp_path: Path) -> None:
    config = load_config(TrainConfig, SMALL, [f"run.dir={tmp_path}", "run.resume=true"])
    (tmp_path / "metrics.jsonl").write_text('{"step": 1}\n')
    note_saved(tmp_path, 7)
    checkpoints = tmp_path / "checkpoints"
    if left != "nothing":
        checkpoints.mkdir()
    if left == "an unfinished save of a later step":
        (checkpoints / "8.orbax-checkpoint-tmp").mkdir()
    with pytest.raises(
        InputError, match=rf"^{checkpoints}: checkpoints of this run, the newest of step 7, are missing"
    ):
        check_folder(config)
    (checkpoints / "7").mkdir(parents=True)
    assert check_folder(config) == tmp_path


def test_deleted_checkpoint_folder_without_a_note_is_rejected(tmp_path: Path) -> None:
    config = load_config(TrainConfig, SMALL, [f"run.dir={tmp_path}", "run.resume=true"])
    assert check_folder(config) == tmp_path
    (tmp_path / "metrics.jsonl").write_text('{"step": 1}\n')
    with pytest.raises(InputError, match=r"checkpoints of this run are missing: restore them to resume, choose"):
        check_folder(config)


@pytest.mark.parametrize(
    "when", ["before the first save", "before the first save has its name", "while it is saved again"]
)
def test_run_killed_before_its_first_checkpoint_restarts(when: str, tmp_path: Path) -> None:
    config = load_config(TrainConfig, SMALL, [f"run.dir={tmp_path}", "run.resume=true"])
    (tmp_path / "metrics.jsonl").write_text('{"step": 1}\n')
    (tmp_path / "checkpoints").mkdir()
    if when == "before the first save":
        (tmp_path / "checkpoints" / "2.orbax-checkpoint-tmp").mkdir()
    else:
        note_saved(tmp_path, 2)
        ending = "orbax-checkpoint-tmp" if when == "before the first save has its name" else "replaced"
        (tmp_path / "checkpoints" / f"2.{ending}").mkdir()
    assert check_folder(config) == tmp_path
    open_folder(config, is_first=True)
    if when == "before the first save has its name":
        (tmp_path / "checkpoints" / "2.orbax-checkpoint-tmp").rmdir()  # like orbax, in a start that fails afterwards
        assert check_folder(config) == tmp_path
    shutil.rmtree(tmp_path / "checkpoints")
    with pytest.raises(InputError, match="are missing"):
        check_folder(config)


def test_configuration_edited_since_the_checkpoint_is_rejected(tmp_path: Path) -> None:
    config = load_config(TrainConfig, SMALL, [f"run.dir={tmp_path}", "sampling.stop=[a]", "grpo.optim.lr=3e-7"])
    saved = json.loads(json.dumps(dataclasses.asdict(config)))
    free = replace_values(config, {"run.keep_checkpoints": 9, "grpo.gradient_accumulation_steps": 4, "grpo.steps": 900})
    refuse_edited_settings(tmp_path, saved, values_by_key(free))
    with pytest.raises(InputError, match=r"config\.yaml: .* saved with grpo\.optim\.lr \(3e-07 then, 3e-06 now\)"):
        refuse_edited_settings(tmp_path, saved, values_by_key(replace_values(config, {"grpo.optim.lr": 3e-6})))


def test_resumed_run_keeps_its_date_and_recorded_checkpoint_path(tmp_path: Path) -> None:
    began = ("data.prompt=chat", "data.chat.date=2024-02-09", "model.checkpoint=here", "run.resume=true")
    (tmp_path / "config.yaml").write_text(to_yaml(load_config(TrainConfig, SMALL, [f"run.dir={tmp_path}", *began])))
    config = load_config(
        TrainConfig, SMALL, [f"run.dir={tmp_path}", "data.prompt=chat", "model.checkpoint=there", "run.resume=true"]
    )
    assert with_settings_from_start(config).data.chat.date == "2024-02-09"
    assert with_settings_from_start(replace_values(config, {"run.resume": False})).data.chat.date == ""
    (tmp_path / "checkpoints" / "1").mkdir(parents=True)
    open_folder(with_settings_from_start(config), is_first=True)
    assert load_config(TrainConfig, tmp_path / "config.yaml").model.checkpoint == "here"
