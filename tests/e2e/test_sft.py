"""The supervised command on a very small run: held-out loss, early stopping, epochs, resuming."""

from __future__ import annotations

import dataclasses
import io
import json
from collections.abc import Callable
from contextlib import redirect_stdout
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from jaxrl_sql.commands.export import main as export
from jaxrl_sql.commands.sft import main
from jaxrl_sql.commands.train import main as train_main
from jaxrl_sql.config import TrainConfig, load_config
from jaxrl_sql.models import load_checkpoint
from jaxrl_sql.training.trainer import open_unchecked

SMALL = Path(__file__).parents[1] / "small.yaml"

Start = Callable[..., list[str]]
Rewind = Callable[[Path, int], None]
Stopped = Callable[[Path, Path, int], Path]


BASE = (
    "grpo.steps=0",
    "sft.optim.schedule=constant",
    "sft.optim.warmup_steps=0",
    "validation.sampling.max_new_tokens=8",
)


@pytest.fixture(scope="module")
def supervised(arguments: Start) -> Start:
    """Return a function (run folder, overrides…) -> command line of a supervised run."""
    return lambda run, *overrides: arguments(run, *BASE, *overrides)


def lines(run: Path) -> list[dict[str, Any]]:
    rows = [json.loads(line) for line in (run / "metrics.jsonl").read_text(encoding="utf-8").splitlines()]
    return [{k: v for k, v in row.items() if not k.startswith(("time/", "speed/"))} for row in rows]


def assert_same_model(a: Path, b: Path) -> None:
    got, want = (load_checkpoint(model)[1] for model in (a, b))
    assert (np.asarray(got["embed"]) == np.asarray(want["embed"])).all()
    for name, leaf in want["layers"].items():
        assert (np.asarray(got["layers"][name]) == np.asarray(leaf)).all(), name


# A learning rate so large that the loss fluctuates and soon stops improving.
EARLY = ("sft.steps=9", "sft.held_out=0.25", "sft.eval_every=1", "sft.patience=2", "sft.optim.lr=0.3")
# Two stages of GRPO, which the supervised command skips.
STAGES = ("grpo.steps=4", "second_stage.steps=5", "validation.every=2", "run.keep_best=1")


@pytest.fixture(scope="module")
def early(supervised: Start, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Return a supervised run that stopped early; `shown.txt` next to it has its output."""
    run = tmp_path_factory.mktemp("runs") / "early"
    with redirect_stdout(io.StringIO()) as shown:
        assert main(supervised(run, *EARLY, *STAGES)) == 0
    (run.parent / "shown.txt").write_text(shown.getvalue())
    return run


def held_out(run: Path) -> list[float]:
    return [row["sft/held_out_loss"] for row in lines(run) if row["phase"] == "sft"]


def test_early_stopping_restores_the_best_held_out_parameters(early: Path, tmp_path: Path) -> None:
    losses = held_out(early)
    best = int(np.argmin(losses)) + 1
    assert len(losses) == best + 2 < 9, losses
    for step in (best, best + 1):
        assert export([str(early), "--step", str(step), "--out", str(tmp_path / str(step)), "--dtype=float32"]) == 0
    assert_same_model(early / "model", tmp_path / str(best))
    weights = [load_checkpoint(folder)[1]["embed"] for folder in (early / "model", tmp_path / str(best + 1))]
    assert not np.array_equal(*weights), "the step after the best does not change the parameters"


@pytest.mark.parametrize(
    "back", [pytest.param(0, marks=pytest.mark.nightly), 1, pytest.param(2, marks=pytest.mark.nightly)]
)
def test_resume_keeps_the_best_loss_and_the_patience_count(
    back: int, early: Path, supervised: Start, tmp_path: Path, stopped: Stopped
) -> None:
    run = stopped(early, tmp_path / "run", len(held_out(early)) - back)
    assert main(supervised(run, *EARLY, *STAGES, "run.resume=true")) == 0
    assert lines(run) == lines(early)
    assert_same_model(run / "model", early / "model")


def test_sft_skips_the_grpo_stages(early: Path) -> None:
    assert {row["phase"] for row in lines(early)} <= {"sft", "eval"}
    shown = (early.parent / "shown.txt").read_text()
    assert "step 1/9 sft " in shown
    assert "grpo: " not in shown


@pytest.mark.nightly
def test_grpo_starts_from_the_best_parameters_and_resumes_bit_equal(
    early: Path, supervised: Start, tmp_path: Path, rewind: Rewind
) -> None:
    """A first GRPO step with so small a rate leaves the parameters almost unchanged."""
    run = tmp_path / "run"
    grpo = (
        "grpo.steps=2", "grpo.prompts=2", "grpo.num_generations=2", "sampling.max_new_tokens=8",
        "rollout.max_num_seqs=4",
        "grpo.optim.lr=1e-30",
    )  # fmt: skip
    assert train_main(supervised(run, *EARLY, *grpo)) == 0
    rows = lines(run)
    assert [row["step"] for row in rows if row["phase"] == "grpo"] == [10, 11]
    got, want = (load_checkpoint(folder / "model")[1]["embed"] for folder in (run, early))
    np.testing.assert_allclose(np.asarray(got), np.asarray(want), atol=1e-12)
    rewind(run, len(held_out(early)))
    assert train_main(supervised(run, *EARLY, *grpo, "run.resume=true")) == 0
    assert lines(run) == rows


def test_a_dry_run_covers_only_the_supervised_phase(
    supervised: Start, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    command = supervised(tmp_path / "run", "grpo.prompts=3", "--dry-run")
    assert main([*command, "sft.steps=3"]) == 0
    output = capsys.readouterr().out
    assert "supervised phase: 3 steps" in output
    assert "grpo pads" not in output
    assert main([*command, "sft.steps=0"]) == 2, "the run would refuse it"
    assert "sft.steps=0 and sft.epochs=0: set one of them" in capsys.readouterr().err


@pytest.mark.nightly
def test_epochs_set_the_number_of_steps(supervised: Start, tmp_path: Path) -> None:
    run = tmp_path / "run"
    assert (
        main(
            supervised(
                run, "sft.steps=0", "sft.epochs=2", "sft.databases=4", "sft.questions=16", "data.select.limit_train=40"
            )
        )
        == 0
    )
    rows = [row for row in lines(run) if row["phase"] == "sft"]
    assert len(rows) % 2 == 0
    assert all(0 < row["sft/padding"] < 1 for row in rows)
    assert (run / "checkpoints" / str(len(rows))).is_dir()
    assert "sft/held_out_loss" not in rows[-1]


@pytest.mark.nightly
def test_mixed_dataset_formats_train_together(
    supervised: Start, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    command = supervised(tmp_path / "run")
    data = Path(next(element for element in command if element.startswith("data.dir=")).removeprefix("data.dir="))
    questions = [json.loads(line) for line in (data / "train/questions.jsonl").read_text().splitlines()][:12]
    (tmp_path / "kept.jsonl").write_text("".join(json.dumps({"id": item["id"]}) + "\n" for item in questions))
    traces = [
        {"id": question["id"], "reasoning": f"trace {question['id']}", "sql": question["sql"]}
        for question in questions[:8]
    ]
    (tmp_path / "traces.jsonl").write_text(
        "".join(json.dumps(entry) + "\n" for entry in [*traces, {**traces[0], "id": "?"}])
    )
    command = [
        *command, "recipe=skyrl_sql", "sft.formats=[arctic, think2sql, skyrl_sql]", "data.prompt=tagged",
        "sampling.turns=3", "sampling.max_total_tokens=400", "sft.steps=0", "sft.epochs=3",
        f"data.select.include_ids={tmp_path}/kept.jsonl",
        f"data.traces={tmp_path}/traces.jsonl", "sft.max_completion_tokens=600", "sft.shuffle_identifiers=0.5",
    ]  # fmt: skip
    assert main(command) == 0
    assert "sft: skipped 1 (a trace without a training question), such as ?" in capsys.readouterr().out
    config = load_config(TrainConfig, SMALL, command)
    with open_unchecked(dataclasses.replace(config, run=dataclasses.replace(config.run, resume=True))) as run:
        dataset = run.questions.sft
        assert len(run.questions.train.examples) == 12
        too_long = [uid for uid, reason in dataset.skipped if reason == "question and answer over 600 tokens"]
        assert len(dataset.train.answers) + len(too_long) == 12 * 3
        assert questions[0]["id"] not in too_long
        texts = [run.prompt_format.tokenizer.decode(answer.token_ids) for answer in dataset.train.answers[:3]]
        assert [tag in text for text, tag in zip(texts, ("<think>", "<reasoning>", "<sql>"), strict=True)] == [True] * 3
        assert all(f"trace {questions[0]['id']}" in text for text in texts)
        dialogue = dataset.train.answers[2]
        read = [t for t, is_learned in zip(dialogue.token_ids, dialogue.loss_mask, strict=True) if not is_learned]
        assert run.prompt_format.tokenizer.decode(read).count("<observation>") == 1
        assert "<observation>" not in run.prompt_format.tokenizer.decode(
            [t for t, is_learned in zip(dialogue.token_ids, dialogue.loss_mask, strict=True) if is_learned]
        )
        tags = set(
            run.prompt_format.tokenizer.encode(
                "think answer sql reasoning solution observation", add_special_tokens=False
            )
        )
        assert {t for t in tags if run.prompt_format.tokenizer.decode([t]).isalpha()} <= dataset.format_tokens


@pytest.mark.slow
def test_packed_rows_and_a_frozen_embedding_resume_bit_equal(
    supervised: Start, stopped: Stopped, tmp_path: Path
) -> None:
    """A frozen embedding is not in any checkpoint but equals the start's."""
    start, whole, moved = tmp_path / "start", tmp_path / "whole", tmp_path / "moved"
    packed = ("sft.steps=4", "sft.packing=true")
    assert main(supervised(whole, *packed, "model.frozen=[embed]")) == 0
    run = stopped(whole, tmp_path / "run", 2)
    assert main(supervised(run, *packed, "model.frozen=[embed]", "run.resume=true")) == 0
    assert_same_model(run / "model", whole / "model")
    assert lines(run) == lines(whole)
    assert main(supervised(moved, *packed)) == 0
    assert train_main(supervised(start, "sft.steps=0")) == 0
    tables = {folder: np.asarray(load_checkpoint(folder / "model")[1]["embed"]) for folder in (start, whole, moved)}
    assert (tables[whole] == tables[start]).all()
    assert not (tables[moved] == tables[start]).all()
    padding = [[row["sft/padding"] for row in lines(folder) if "sft/padding" in row] for folder in (moved, whole)]
    assert padding[0] == padding[1]
