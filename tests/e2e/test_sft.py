"""The supervised command from end to end on a very small run: held-out loss, an early end, epochs, going on."""

from __future__ import annotations

import dataclasses
import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from jaxrl_sql.config import load_config
from jaxrl_sql.datagen.synth import SynthSpec, generate
from jaxrl_sql.models import load_checkpoint
from jaxrl_sql.run.session import open_session
from jaxrl_sql.sft import main
from jaxrl_sql.train import main as train_main

Start = Callable[..., list[str]]
Rewind = Callable[[Path, int], None]


@pytest.fixture(scope="module")
def arguments(tmp_path_factory: pytest.TempPathFactory) -> Start:
    data = tmp_path_factory.mktemp("data")
    generate(data, SynthSpec(train_dbs=4, dev_dbs=1, unseen_dbs=2, train_questions=16, dev_questions=4))

    def build(run: Path, *overrides: str) -> list[str]:
        return [
            "data.source=folder", f"data.dir={data}", f"data.tokenizer={data}/tokenizer", f"run.dir={run}",
            "data.max_prompt_tokens=320", "model.d_model=32", "model.n_layers=1", "model.n_heads=2",
            "model.n_kv_heads=1", "model.head_dim=16", "model.d_ff=48", "sft.databases=2", "sft.questions=4",
            "sft.log_every=1", "sft.max_completion_tokens=128", "sft.optim.schedule=constant",
            "sft.optim.warmup_steps=0", "validation.max_num_seqs=4", "validation.max_new_tokens=8",
            "run.checkpoint_every=1",
            "run.keep_checkpoints=9", "run.display=plain", *overrides,
        ]  # fmt: skip

    return build


def lines(run: Path) -> list[dict[str, Any]]:
    rows = [json.loads(line) for line in (run / "metrics.jsonl").read_text(encoding="utf-8").splitlines()]
    return [{k: v for k, v in row.items() if not k.startswith(("time/", "speed/"))} for row in rows]


def assert_same_model(a: Path, b: Path) -> None:
    got, want = (load_checkpoint(run / "model")[1] for run in (a, b))
    assert (np.asarray(got["embed"]) == np.asarray(want["embed"])).all()
    for name, leaf in want["layers"].items():
        assert (np.asarray(got["layers"][name]) == np.asarray(leaf)).all(), name


# So large a rate makes the loss jump about, and soon no better than it was.
EARLY = ("sft.steps=9", "sft.held_out=0.25", "sft.eval_every=1", "sft.patience=2", "sft.optim.lr=0.3")


@pytest.fixture(scope="module")
def early(arguments: Start, tmp_path_factory: pytest.TempPathFactory) -> Path:
    run = tmp_path_factory.mktemp("runs") / "early"
    assert main(arguments(run, *EARLY)) == 0
    return run


def held_out(run: Path) -> list[float]:
    return [row["sft/held_out_loss"] for row in lines(run) if row["phase"] == "sft"]


def test_a_run_ends_early_with_the_parameters_of_the_best_held_out_loss(
    early: Path, arguments: Start, tmp_path: Path
) -> None:
    losses = held_out(early)
    best = int(np.argmin(losses)) + 1
    assert len(losses) == best + 2 < 9, losses
    assert main(arguments(tmp_path / "best", *EARLY, f"sft.steps={best}", "sft.patience=0")) == 0
    assert_same_model(early, tmp_path / "best")


@pytest.mark.parametrize("back", [pytest.param(0, marks=pytest.mark.slow), 1, pytest.param(2, marks=pytest.mark.slow)])
def test_trap_resume_keeps_the_best_and_the_count(
    back: int, early: Path, arguments: Start, tmp_path: Path, rewind: Rewind
) -> None:
    run, rows = tmp_path / "run", lines(early)
    assert main(arguments(run, *EARLY)) == 0
    rewind(run, len(held_out(early)) - back)
    assert main(arguments(run, *EARLY, "run.resume=true")) == 0
    assert lines(run) == rows
    assert_same_model(run, early)


@pytest.mark.slow
def test_grpo_begins_with_the_best_and_goes_on_alike(
    early: Path, arguments: Start, tmp_path: Path, rewind: Rewind
) -> None:
    """The first GRPO step of so small a rate leaves the parameters as good as they were."""
    run = tmp_path / "run"
    grpo = (
        "grpo.steps=2", "grpo.prompts=2", "grpo.num_generations=2", "sampling.max_new_tokens=8",
        "rollout.max_num_seqs=4",
        "grpo.optim.lr=1e-30",
    )  # fmt: skip
    assert train_main(arguments(run, *EARLY, *grpo)) == 0
    rows = lines(run)
    assert [row["step"] for row in rows if row["phase"] == "grpo"] == [10, 11]
    got, want = (load_checkpoint(folder / "model")[1]["embed"] for folder in (run, early))
    np.testing.assert_allclose(np.asarray(got), np.asarray(want), atol=1e-12)
    rewind(run, len(held_out(early)))
    assert train_main(arguments(run, *EARLY, *grpo, "run.resume=true")) == 0
    assert lines(run) == rows


def test_a_dry_run_is_of_the_supervised_phase_alone(
    arguments: Start, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    command = arguments(tmp_path / "run", "grpo.prompts=3", "--dry-run")
    assert main([*command, "sft.steps=3"]) == 0
    said = capsys.readouterr().out
    assert "supervised phase: 3 steps" in said
    assert "grpo pads" not in said
    assert main(command) == 2, "the run would refuse it"
    assert "sft.steps=0 and sft.epochs=0 teach nothing" in capsys.readouterr().err


def test_the_supervised_phase_of_a_run_of_two_stages_is_taught_alone(
    arguments: Start, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    run = tmp_path / "run"
    stages = ("grpo.steps=4", "second_stage.steps=5", "validation.every=2", "run.keep_best=1")
    assert main(arguments(run, "sft.steps=1", *stages)) == 0
    assert "step 1/1 sft " in capsys.readouterr().out
    assert main(["--resume", str(run)]) == 0


@pytest.mark.slow
def test_epochs_say_how_long(arguments: Start, tmp_path: Path) -> None:
    run = tmp_path / "run"
    assert main(arguments(run, "sft.epochs=2", "sft.databases=4", "sft.questions=16", "data.limit_train=40")) == 0
    rows = [row for row in lines(run) if row["phase"] == "sft"]
    assert len(rows) % 2 == 0
    assert all(0 < row["sft/padding"] < 1 for row in rows)
    assert (run / "checkpoints" / str(len(rows))).is_dir()
    assert "sft/held_out_loss" not in rows[-1]


@pytest.mark.slow
def test_forms_side_by_side_dialogues_and_traces_on_chosen_questions(
    arguments: Start, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    command = arguments(tmp_path / "run")
    data = Path(next(one for one in command if one.startswith("data.dir=")).removeprefix("data.dir="))
    questions = [json.loads(line) for line in (data / "train/questions.jsonl").read_text().splitlines()][:12]
    (tmp_path / "kept.jsonl").write_text("".join(json.dumps({"id": one["id"]}) + "\n" for one in questions))
    told = [{"id": one["id"], "reasoning": f"trace {one['id']}", "sql": one["sql"]} for one in questions[:8]]
    (tmp_path / "traces.jsonl").write_text("".join(json.dumps(one) + "\n" for one in [*told, {**told[0], "id": "?"}]))
    command = [
        *command, "recipe=skyrl_sql", "sft.formats=[arctic, think2sql, skyrl_sql]", "data.prompt=tagged",
        "sampling.turns=3", "sampling.max_total_tokens=400", "sft.epochs=3", f"data.include_ids={tmp_path}/kept.jsonl",
        f"data.traces={tmp_path}/traces.jsonl", "sft.max_completion_tokens=600", "sft.shuffle_identifiers=0.5",
    ]  # fmt: skip
    assert main(command) == 0
    assert "sft: skipped 1 (a trace of no question that is taught), such as ?" in capsys.readouterr().out
    config = load_config(None, command)
    with open_session(dataclasses.replace(config, run=dataclasses.replace(config.run, resume=True))) as s:
        dataset = s.sft_dataset
        assert len(s.train.examples) == 12
        too_long = [uid for uid, reason in dataset.skipped if reason == "question and answer over 600 tokens"]
        assert len(dataset.taught.answers) + len(too_long) == 12 * 3
        assert questions[0]["id"] not in too_long
        texts = [s.tokenizer.decode(answer.token_ids) for answer in dataset.taught.answers[:3]]
        assert [tag in text for text, tag in zip(texts, ("<think>", "<reasoning>", "<sql>"), strict=True)] == [True] * 3
        assert all(f"trace {questions[0]['id']}" in text for text in texts)
        dialogue = dataset.taught.answers[2]
        read = [t for t, is_learned in zip(dialogue.token_ids, dialogue.learned, strict=True) if not is_learned]
        assert s.tokenizer.decode(read).count("<observation>") == 1
        assert "<observation>" not in s.tokenizer.decode(
            [t for t, is_learned in zip(dialogue.token_ids, dialogue.learned, strict=True) if is_learned]
        )
        tags = set(s.tokenizer.encode("think answer sql reasoning solution observation", add_special_tokens=False))
        assert {t for t in tags if s.tokenizer.decode([t]).isalpha()} <= dataset.form


def test_packed_rows_and_a_frozen_table_go_on_as_if_never_stopped(
    arguments: Start, rewind: Rewind, tmp_path: Path
) -> None:
    """What does not move is in no checkpoint, and is what the run started from all the same."""
    run, whole = tmp_path / "run", tmp_path / "whole"
    packed = ("sft.steps=4", "sft.packing=true", "model.frozen=[embed]")
    assert main(arguments(whole, *packed)) == 0
    assert main(arguments(run, *packed)) == 0
    start = np.asarray(load_checkpoint(run / "model")[1]["embed"])
    rewind(run, 2)
    assert main(arguments(run, *packed, "run.resume=true")) == 0
    assert_same_model(run, whole)
    assert lines(run) == lines(whole)
    moved = tmp_path / "moved"
    assert main(arguments(moved, "sft.steps=4", "sft.packing=true")) == 0
    assert not (np.asarray(load_checkpoint(moved / "model")[1]["embed"]) == start).all()
    assert train_main(arguments(tmp_path / "start", "sft.steps=0", "grpo.steps=0")) == 0
    assert (np.asarray(load_checkpoint(tmp_path / "start" / "model")[1]["embed"]) == start).all()
    padding = [[row["sft/padding"] for row in lines(one) if "sft/padding" in row] for one in (moved, whole)]
    assert padding[0] == padding[1]
