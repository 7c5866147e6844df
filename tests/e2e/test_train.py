"""The train command on a very small run: its files, stopping, resuming, and refusals."""

from __future__ import annotations

import json
import os
import re
import shlex
import shutil
import signal
import sqlite3
from collections.abc import Callable
from pathlib import Path
from typing import Any

import jax
import numpy as np
import pytest
from safetensors.numpy import load_file

from jaxrl_sql.__main__ import main as jaxrl_sql
from jaxrl_sql.commands.train import main
from jaxrl_sql.inference.trained_questions import trained_warning
from jaxrl_sql.models import ModelConfig, Norms, Rope, init_params, load_checkpoint, param_specs, save_checkpoint
from jaxrl_sql.models.lora import Adapters, LoraPair, merge
from jaxrl_sql.report.facts import accuracies, describe_run
from jaxrl_sql.report.groups import (
    RUN,
    ResultFolder,
    add_advantages,
    last_evaluations,
    list_chunks,
    open_result_folder,
    read_chunk,
    read_tokens,
)
from jaxrl_sql.report.load import load_run
from jaxrl_sql.report.outcome import first_sentence
from jaxrl_sql.runtime.folder import list_saved_steps
from jaxrl_sql.runtime.rollouts import unpack_ids, unpack_logprobs
from jaxrl_sql.text2sql.benchmarks import load_folder
from jaxrl_sql.training.grpo import on_mesh

Start = Callable[..., list[str]]
Stopped = Callable[[Path, Path, int], Path]
Untimed = Callable[[Path], list[dict[str, Any]]]


def lines(path: Path) -> list[dict[str, Any]]:
    return [json.loads(line) for line in path.read_text(encoding="utf-8").splitlines()]


@pytest.fixture(scope="module")
def shown(whole: Path) -> list[str]:
    return (whole.parent / "shown.txt").read_text().splitlines()


def test_each_phase_prints_its_start_and_size(shown: list[str], small_data: Path, whole: Path) -> None:
    begins = [
        "whole", "opening the devices", f"reading dev_unseen, train from {small_data}",
        "running the golds: 64 questions", "tokenizing the prompts of train: 64 questions",
        "tokenizing the prompts of dev_unseen: 8 questions", "prompts: ", "memory per device",
        "tokenizing the SFT targets: 64 questions", "making new weights", "sft: 2 steps", "step 1/5 sft ",
        "step 2/5 sft ", "evaluating dev_unseen: 8 questions", "step 2/5 eval ", "grpo: 3 steps", "step 3/5 grpo ",
        "step 4/5 grpo ", "step 5/5 grpo ", "evaluating dev_unseen: 8 questions", "step 5/5 eval ",
        f"writing the model to {whole}/model", "dev_unseen: accuracy ",
        "health: 100 % of the groups have no signal", "done in ", f"model: {whole}/model",
        f"report: {whole}/report.html", f"next: jaxrl-sql view {whole}", "next: jaxrl-sql ask ",
        "next: jaxrl-sql evaluate ",
    ]  # fmt: skip
    rest = iter(shown)  # a slow machine prints progress in between
    for begin in begins:
        assert any(line.startswith(begin) for line in rest), begin


@pytest.mark.slow
@pytest.mark.parametrize("command", ["view", "ask", "evaluate"])
def test_suggested_commands_run(
    command: str, shown: list[str], whole: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    run = shutil.copytree(whole, tmp_path / "run")
    (line,) = [line for line in shown if line.startswith(f"next: jaxrl-sql {command} ")]
    code = jaxrl_sql(shlex.split(line.replace(str(whole), str(run)))[2:])
    output, error = capsys.readouterr()
    files = {"view": f"{run}/view/index.html", "evaluate": f"{run}/evaluated/metrics.json"}
    assert error == ""
    assert files.get(command, "\n") in output
    assert code == 0 or (command, code) == ("ask", 1)  # the model may write SQL that fails


def test_report_begins_with_a_sentence_and_the_duration_of_the_terminal(shown: list[str], whole: Path) -> None:
    (took,) = [line.removeprefix("done in ").split(",")[0] for line in shown if line.startswith("done in ")]
    run = load_run(whole)
    sentence = first_sentence(run, accuracies(run, last_evaluations(ResultFolder(whole, RUN))))
    assert re.fullmatch(
        r"Accuracy on dev_unseen was 0\.0 % \(95 % interval 0\.0 to [\d.]+\) before GRPO "
        rf"and is 0\.0 % \(0\.0 to [\d.]+\) after 5 steps in {took}, a difference of \+0\.0 points \(\S+ to \S+\)\.",
        sentence,
    )
    assert dict(describe_run(run))["duration"] == took


def test_a_run_writes_all_promised_files(whole: Path) -> None:
    rows = lines(whole / "metrics.jsonl")
    assert [(row["step"], row["phase"]) for row in rows] == [
        (1, "sft"), (2, "sft"), (2, "eval"), (3, "grpo"), (4, "grpo"), (5, "grpo"), (5, "eval"),
    ]  # fmt: skip
    assert all(next(iter(row)) == "step" for row in rows)
    for name in ("reward/mean", "policy/entropy", "policy/kl", "optim/grad_norm", "time/sql_wait"):
        assert any(name in row for row in rows), name
    first = rows[3]
    assert first["policy/ratio_mean"] == pytest.approx(1.0)
    assert first["policy/sampler_delta_mean"] < 1e-4
    assert first["policy/kl"] == pytest.approx(0.0, abs=1e-6)
    samples = lines(whole / "samples.jsonl")
    assert all({"step", "uid", "sql", "status", "reward", "right"} <= set(sample) for sample in samples)
    assert {sample["finish_reason"] for sample in samples} <= {"stop", "length"}
    for path in ("config.yaml", "report.html", "tb", "model/config.json", "model/tokenizer.json", "checkpoints/5"):
        assert (whole / path).exists(), path


def test_answers_are_stored_with_their_advantages(whole: Path) -> None:
    """Two prompts of two answers per step; the advantages of a group follow from its rewards."""
    source = open_result_folder(whole)
    read = [read_chunk(chunk) for chunk in list_chunks(source)]
    assert not any(record.is_incomplete for record in read)
    groups = [group for item in read for group in item.groups]
    add_advantages(groups, {at: rows for record in read for at, rows in record.advantages.items()})
    tokens = read_tokens(source)
    trained = [entry for entry in groups if entry["phase"] == "grpo"]
    assert [row["step"] for row in trained] == [3, 3, 4, 4, 5, 5]
    assert sorted(row["chosen"] for row in trained) == [0, 0, 0, 1, 1, 1]
    for group in trained:
        rewards, advantages = ([answer[name] for answer in group["answers"]] for name in ("reward", "advantage"))
        assert len(rewards) == 2
        assert np.argsort(rewards, kind="stable").tolist() == np.argsort(advantages, kind="stable").tolist()
        for answer in group["answers"]:
            role, text, ids, logprobs = answer["turns"][0]
            assert role == "assistant"
            assert len(unpack_ids(ids)) == len(unpack_logprobs(logprobs)) > 0
            assert max(unpack_logprobs(logprobs)) <= 0.0
            decoded = "".join(tokens[token] for token in unpack_ids(ids))  # partial characters are not text
            assert decoded.encode("ascii", "ignore").startswith(text.encode("ascii", "ignore"))
    evaluated = [element for element in groups if element["phase"].startswith("eval/")]
    assert {row["step"] for row in evaluated} == {2, 5}
    assert all(len(row["answers"]) == 1 and row["rule"] for row in evaluated)
    reasons = [answer["finish_reason"] for group in (*trained, *evaluated) for answer in group["answers"]]
    assert set(reasons) <= {"stop", "length"}
    last = [group for group in evaluated if (group["phase"], group["step"]) == ("eval/dev_unseen", 5)]
    ends = [group["answers"][0]["finish_reason"] for group in last]
    (row,) = [row for row in lines(whole / "metrics.jsonl") if row["step"] == 5 and row["phase"] == "eval"]
    assert row["eval/dev_unseen/truncated"] == ends.count("length") / len(ends) > 0, "twelve tokens are few"
    about = json.loads((whole / "about.json").read_text())
    assert about["parameters"] > 0
    assert about["sessions"][0]["began"] <= about["sessions"][0]["ended"]


@pytest.mark.slow
def test_rollouts_can_be_disabled(arguments: Start, whole: Path, tmp_path: Path, untimed: Untimed) -> None:
    assert main(arguments(tmp_path / "run", "run.keep_rollouts=0", "run.trackers=[]")) == 0
    assert not (tmp_path / "run" / "rollouts").exists()
    assert not (tmp_path / "run" / "tb").exists()
    assert untimed(tmp_path / "run" / "metrics.jsonl") == untimed(whole / "metrics.jsonl")


def test_the_exported_model_is_the_last_policy(whole: Path) -> None:
    config, params = load_checkpoint(whole / "model")
    assert config.n_layers == 1
    assert all(np.isfinite(np.asarray(leaf)).all() for leaf in params["layers"].values())


def test_an_evaluation_recognizes_the_questions_of_the_training(whole: Path, small_data: Path, tmp_path: Path) -> None:
    train, unseen = (load_folder(small_data / name).examples for name in ("train", "dev_unseen"))
    assert len((whole / "trained_questions.txt").read_text().splitlines()) <= 64
    again = tmp_path / "again"  # a run that began with this model
    (again / "model").mkdir(parents=True)
    (again / "config.yaml").write_text(f"model: {{checkpoint: {whole / 'model'}}}\n")
    for model in (whole, whole / "model", again):
        mixed = [*train, *unseen]
        warning = trained_warning("mixed", mixed, str(model))
        assert warning.startswith(f"warning: 64 of {len(mixed)} questions of mixed are in the training of the model: ")
        assert warning.endswith("evaluate held-out questions (of a single file, --split dev)")
        assert trained_warning("mixed", mixed, str(model), "dev").endswith("evaluate held-out questions")
        assert trained_warning("dev_unseen", unseen, str(model)) == ""
    assert trained_warning("train", train, str(Path(__file__).parents[2] / "configs/quickstart_start")) == ""


def test_a_run_stopped_by_ctrl_c_resumes_bit_equal(
    arguments: Start, whole: Path, stopped: Stopped, tmp_path: Path, untimed: Untimed, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The signal arrives in the second GRPO step, after which the run saves a checkpoint and a report."""
    run = stopped(whole, tmp_path / "stopped", 3)
    (run / "report.html").unlink()

    def interrupt(*batch: Any) -> Any:
        os.kill(os.getpid(), signal.SIGINT)
        return on_mesh(*batch)

    with monkeypatch.context() as patch:
        patch.setattr("jaxrl_sql.training.grpo.on_mesh", interrupt)
        assert main(arguments(run, "run.checkpoint_every=99", "run.resume=true")) == 130
    assert [(row["step"], row["phase"]) for row in lines(run / "metrics.jsonl")][-1] == (4, "grpo")
    assert list_saved_steps(run) == [1, 2, 3, 4]
    assert (run / "report.html").exists()
    assert main(arguments(run, "run.resume=true")) == 0
    assert_equal_runs(run, whole, untimed)


@pytest.mark.nightly
@pytest.mark.parametrize("stop_at", [1, 4])
def test_resume_is_bit_equal_from_any_step(
    stop_at: int, arguments: Start, whole: Path, tmp_path: Path, stopped: Stopped, untimed: Untimed
) -> None:
    run = stopped(whole, tmp_path / "resumed", stop_at)
    assert main(arguments(run, "run.resume=true")) == 0
    assert_equal_runs(run, whole, untimed)


def assert_equal_runs(run: Path, whole: Path, untimed: Untimed) -> None:
    """Compare metrics, rollouts and weights of two runs bit for bit."""
    assert untimed(run / "metrics.jsonl") == untimed(whole / "metrics.jsonl")
    rollouts = [{path.name: path.read_bytes() for path in (folder / "rollouts").iterdir()} for folder in (run, whole)]
    assert rollouts[0] == rollouts[1]
    got, want = load_checkpoint(run / "model")[1], load_checkpoint(whole / "model")[1]
    assert (np.asarray(got["embed"]) == np.asarray(want["embed"])).all()
    for name, leaf in want["layers"].items():
        assert (np.asarray(got["layers"][name]) == np.asarray(leaf)).all(), name


LORA = (
    "model.lora.rank=2",
    "model.lora.targets=[q, o, down]",
    "grpo.gradient_accumulation_steps=0",  # one prompt per micro-batch
    "grpo.loss.entropy_bonus=0.05",
)


def adapters_of(folder: Path, config: ModelConfig) -> Adapters:
    """Read adapters in PEFT's format."""
    fields = json.loads((folder / "adapter_config.json").read_text())
    tensors = load_file(folder / "adapter_model.safetensors")
    rank, pairs = fields["r"], {}
    specs = [param_spec for param_spec in param_specs(config) if param_spec.is_stacked and param_spec.is_matrix]
    for spec in (item for item in specs if item.hf_name.split(".")[-2] in fields["target_modules"]):
        names = [spec.hf_name.format(layer=i).removesuffix(".weight") for i in range(config.n_layers)]
        a, b = (np.stack([tensors[f"base_model.model.{n}.lora_{x}.weight"].T for n in names]) for x in "AB")
        layers, *sizes = spec.shape
        shapes = (layers, *sizes[: spec.n_in], rank), (layers, rank, *sizes[spec.n_in :])
        pairs[spec.path[-1]] = LoraPair(a.reshape(shapes[0]), b.reshape(shapes[1]))
    return Adapters(pairs, fields["lora_alpha"] / rank)


@pytest.mark.nightly
@pytest.mark.parametrize("steps", [0, 2])
def test_adapter_training_leaves_the_base_bit_equal(
    steps: int,
    arguments: Start,
    whole: Path,
    tmp_path: Path,
    rewind: Callable[[Path, int], None],
    untimed: Untimed,
) -> None:
    """From a checkpoint without a cold start; from one with adapters; then resumed after the first GRPO step.

    The entropy bonus changes the adapters even if all answers have equal rewards.
    """
    run, start = tmp_path / "run", whole / "model"
    command = arguments(run, f"model.checkpoint={start}", *LORA, f"sft.steps={steps}")
    assert main(command) == 0
    first = next(row for row in lines(run / "metrics.jsonl") if row["phase"] == "grpo")
    assert first["policy/kl"] == pytest.approx(0.0, abs=1e-6), "the reference is not the start"
    assert first["policy/sampler_delta_mean"] < 1e-4

    config, base = load_checkpoint(start)
    merged = load_checkpoint(run / "model")[1]
    adapters = adapters_of(run / "adapters", config)
    assert all(pair.b.any() for pair in adapters.pairs.values())
    expected = merge(adapters, base)
    for (path, got), want, old in zip(
        jax.tree.leaves_with_path(merged), jax.tree.leaves(expected), jax.tree.leaves(base), strict=True
    ):
        assert np.array_equal(got, want), path
        assert np.array_equal(got, old) == (path[-1].key not in adapters.pairs), path

    biggest = max(file.stat().st_size for file in (run / "checkpoints").rglob("*") if file.is_file())
    assert biggest < base["embed"].nbytes, "a checkpoint contains the base"
    if not steps:
        return
    remaining, rows = (run / "adapters/adapter_model.safetensors").read_bytes(), untimed(run / "metrics.jsonl")
    rewind(run, steps + 1)
    assert main([*command, "run.resume=true"]) == 0
    assert untimed(run / "metrics.jsonl") == rows
    assert (run / "adapters/adapter_model.safetensors").read_bytes() == remaining


def test_an_unknown_adapter_target_is_reported_in_one_line(
    arguments: Start, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    assert main(arguments(tmp_path / "run", "model.lora.rank=2", "model.lora.targets=[query]")) == 2
    error = capsys.readouterr().err
    assert "model.lora.targets: 'query' is not a weight; valid are q, k, v, o, gate, up, down" in error
    assert error.count("\n") == 1


def test_a_used_folder_is_refused(arguments: Start, whole: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert main(arguments(whole)) == 2
    assert "run.resume=true" in capsys.readouterr().err


def _without_template(data: Path, folder: Path) -> Path:
    copied = shutil.copytree(data / "tokenizer", folder / "tokenizer")
    (copied / "chat_template.jinja").unlink(missing_ok=True)
    fields = json.loads((copied / "tokenizer_config.json").read_text())
    (copied / "tokenizer_config.json").write_text(json.dumps({**fields, "chat_template": None}))
    return copied


def _make_bad_model(kind: str, data: Path, folder: Path) -> list[str] | None:
    """Create a bad model, tokenizer or mesh; return None for other kinds."""
    if kind == "unknown family":
        (folder / "config.json").write_text('{"model_type": "bert"}', encoding="utf-8")
        return [f"model.checkpoint={folder}", f"data.tokenizer.path={data}/tokenizer"]
    if kind == "too few positions":
        config = ModelConfig("llama", 2000, 24, 1, 2, 1, 12, 40, Rope(1e4), Norms(), True, False, False, 160)
        save_checkpoint(folder, config, init_params(config, jax.random.key(0)))
        return [f"model.checkpoint={folder}", f"data.tokenizer.path={data}/tokenizer"]
    if kind == "no chat template":
        return ["data.prompt=chat", f"data.tokenizer.path={_without_template(data, folder)}"]
    if kind == "too many devices":
        return ["mesh.data=3"]
    if kind == "too few tokens":
        return ["grpo.max_tokens_per_device=64"]
    return None


def _make_bad(kind: str, data: Path, folder: Path) -> list[str]:
    """Create a bad input and return the overrides that select it."""
    if (bad_model := _make_bad_model(kind, data, folder)) is not None:
        return bad_model
    if kind == "unknown key":
        return ["grpo.num_generation=4"]
    if kind == "wrong type":
        return ["grpo.steps=many"]
    if kind == "no data":
        return [f"data.dir={folder}/nowhere"]
    if kind == "no checkpoint":
        return [f"model.checkpoint={folder}/nowhere"]
    split = folder / "data" / "train"
    database = split / "databases" / "a" / "a.sqlite"
    database.parent.mkdir(parents=True)
    sqlite3.connect(database).executescript("CREATE TABLE t(x); INSERT INTO t VALUES (1);")
    good = json.dumps({"id": "1", "db_id": "a", "question": "q", "evidence": "", "sql": "SELECT x FROM t"})
    text = {
        "malformed line": f"{good}\n{{oops\n",
        "no usable gold": json.dumps(
            {"id": "1", "db_id": "a", "question": "q", "evidence": "", "sql": "SELECT y FROM t"}
        ),
        "no database": good.replace('"a"', '"b"'),
    }[kind]
    (split / "questions.jsonl").write_text(text, encoding="utf-8")
    return [f"data.dir={folder}/data", "data.evals=[train]"]


@pytest.mark.parametrize(
    ("kind", "message"),
    [
        ("unknown key", "num_generations"),
        ("wrong type", "grpo.steps"),
        ("no data", "nowhere"),
        ("no checkpoint", "nowhere"),
        ("unknown family", "model_type is 'bert'; valid are gemma3_text, llama, qwen2, qwen3"),
        ("too few positions", "data.max_prompt_tokens"),
        ("no chat template", "needs a tokenizer with a chat template"),
        ("too many devices", "data=3 x fsdp=-1 x tensor=1 does not multiply to 1 device"),
        ("too few tokens", "grpo.max_tokens_per_device=64: a prompt of"),
        ("malformed line", "questions.jsonl:2"),
        ("no usable gold", "gold"),
        ("no database", "database"),
    ],
)
def test_invalid_input_is_reported_in_one_line_with_exit_code_2(
    kind: str, message: str, small_data: Path, arguments: Start, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    bad = _make_bad(kind, small_data, tmp_path)
    compiled: list[str] = []

    def note(event: str, _seconds: float, **names: Any) -> None:
        if event == "/jax/core/compile/backend_compile_duration":
            compiled.append(str(names.get("fun_name")))

    jax.monitoring.register_event_duration_secs_listener(note)
    try:
        assert main(arguments(tmp_path / "run", *bad)) == 2
    finally:
        jax.monitoring.unregister_event_duration_listener(note)
    assert compiled == [], "refused only after a compilation"
    error = capsys.readouterr().err
    assert message in error
    assert error.count("\n") == 1


def test_a_checkpoint_of_another_model_is_refused(
    arguments: Start, whole: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    assert main(arguments(whole, "run.resume=true", "model.d_ff=64")) == 2
    assert capsys.readouterr().err.count("\n") == 1
