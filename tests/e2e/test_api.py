"""The Python API: training, metrics, models, evaluation, and values that only Python can pass."""

from __future__ import annotations

import json
import re
import shutil
import sqlite3
import subprocess
import sys
from collections.abc import Callable, Mapping
from contextlib import closing
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import jax
import pytest

import jaxrl_sql as jx
from jaxrl_sql.commands.train import main as train_command
from jaxrl_sql.config import Override
from jaxrl_sql.training.caller import CallerInputs
from jaxrl_sql.types import InputError

README = Path(__file__).parents[2] / "README.md"
START = Path(__file__).parents[2] / "configs" / "quickstart_start"


Start = Callable[..., list[str]]


@pytest.fixture
def run(whole: Path) -> jx.Run:
    """Return a finished run, which `jx.train` made."""
    return jx.Run(whole)


def rows_of(table: Any) -> list[dict[str, Any]]:
    return table if isinstance(table, list) else table.to_dict("records")


def test_a_run_has_its_metrics_samples_and_configuration(run: jx.Run) -> None:
    phases = {row["phase"] for row in rows_of(run.metrics)}
    assert "grpo" in phases
    assert rows_of(run.samples)
    assert run.config.grpo.steps == 3


@pytest.mark.nightly
def test_train_repeats_a_run_from_its_configuration(run: jx.Run, tmp_path: Path) -> None:
    again = jx.train(run.config, f"run.dir={tmp_path / 'again'}")
    losses = [
        [row.get("policy/loss") for row in rows_of(each.metrics) if row["phase"] == "grpo"] for each in (run, again)
    ]
    assert losses[0] == losses[1]
    assert len(losses[0]) == 3


def test_train_takes_examples_a_reward_function_and_a_callback(
    arguments: Start, small_data: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    """No question folder is read; the run stops after its second step and resumes with the same arguments."""
    examples, held_out = (jx.load_benchmark(small_data / name).examples for name in ("train", "dev"))
    where = {"data": {"dir": tmp_path / "nowhere"}, "sft.steps": 0, "run": {"dir": tmp_path / "run"}}
    paid, seen = list[float](), list[tuple[int, str]]()

    def reward(answer: Any) -> float:
        assert answer.example.question
        paid.append(len(answer.text) / 100 + answer.reward.total)
        return paid[-1]

    def callback(step: int, metrics: Mapping[str, Any]) -> bool:
        seen.append((step, metrics["phase"]))
        return step == 2

    def train(*more: Override, **passed: Any) -> jx.Run:
        evals = {"held_out": held_out[:2]}
        return jx.train(None, *arguments(tmp_path / "run"), where, *more, examples=examples, evals=evals, **passed)

    run = train(callback=callback, reward=reward)
    rows = rows_of(run.metrics)
    assert run.exit_code == 0
    assert seen == [(0, "eval"), (1, "grpo"), (2, "grpo")]
    assert [(row["step"], row["phase"]) for row in rows] == seen
    assert "eval/held_out/accuracy" in rows[0]
    for row, rewards in zip(rows[1:], (paid[:4], paid[4:]), strict=True):  # 2 questions of 2 answers per step
        assert row["reward/mean"] == pytest.approx(sum(rewards) / 4)
        assert row["reward/recipe"] <= row["reward/mean"]
    assert (run.config.data.dir, run.config.data.train, run.config.data.evals) == ("memory", "examples", ["held_out"])
    advice = "stopped; resume with jx.train(…, {'run.resume': True}, examples=…, evals=…, reward=…)"
    assert advice in " ".join(capsys.readouterr().out.split())
    assert train_command(["--resume", str(run.folder)]) == 2
    assert "run: its questions were passed in Python: resume with jx.train(…, " in capsys.readouterr().err
    with pytest.raises(InputError, match=r"run: the reward function: changed since the run started"):
        train({"run.resume": True})
    with pytest.raises(InputError, match=r"run: data\.train: changed since the run started"):
        jx.train(
            run.config, {"run.resume": True}, examples=examples[1:], evals={"held_out": held_out[:2]}, reward=reward
        )
    assert train({"run.resume": True}, reward=reward).exit_code == 0
    assert [(row["step"], row["phase"]) for row in rows_of(run.metrics)] == [*seen, (3, "grpo"), (3, "eval")]
    assert (run.folder / "model").is_dir()


def test_run_names_a_folder_without_run_files(tmp_path: Path) -> None:
    for read in (lambda: jx.Run(tmp_path).metrics, lambda: jx.Run(tmp_path).samples):
        with pytest.raises(InputError, match=rf"^{tmp_path}/\w+\.jsonl: No such file or directory$"):
            read()


def test_model_answers_one_question_or_several(run: jx.Run, small_data: Path) -> None:
    examples = jx.load_benchmark(small_data / "dev").examples[:3]
    with run.model("evaluate.sampling.max_new_tokens=24") as model:
        first = model.ask(examples[0].db_path, examples[0].question)
        many = model.answer_many(examples[0].db_path, [example.question for example in examples])
    assert first.sql == many[0].sql
    assert len(many) == 3
    assert all(item.outcome is not None and item.outcome.status for item in many if item.sql)


def test_a_moved_model_folder_keeps_its_prompt_settings(
    run: jx.Run, small_data: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    copy = shutil.copytree(run.folder / "model", tmp_path / "elsewhere")
    monkeypatch.chdir(tmp_path)
    example = jx.load_benchmark(small_data / "dev").examples[0]
    with (
        run.model("evaluate.sampling.max_new_tokens=24") as there,
        jx.Model("elsewhere", "evaluate.sampling.max_new_tokens=24") as here,
    ):
        assert here.config.data.prompt == there.config.data.prompt == "compact", "the chat template is the default"
        assert here.ask(example.db_path, example.question).sql == there.ask(example.db_path, example.question).sql
        assert jax.sharding.get_mesh().empty, "open models do not change the caller's JAX mesh"
    assert jax.sharding.get_mesh().empty
    assert copy.is_dir()


def test_evaluate_judges_predictions_in_memory(
    small_data: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    examples = jx.load_benchmark(small_data / "dev").examples
    predictions: dict[str, str | None] = {example.uid: example.gold_sql for example in examples}
    predictions[examples[0].uid] = None
    result = jx.evaluate(small_data / "dev", predictions, out=tmp_path / "out")
    assert capsys.readouterr().out == ""
    assert [record["id"] for record in result.records if not record["scores"]["bird"]] == [examples[0].uid]
    assert pytest.approx(1 - 1 / len(examples)) in result.numbers.values()
    assert (tmp_path / "out" / "records.jsonl").exists()


def test_evaluate_accepts_a_list_of_examples(small_data: Path) -> None:
    examples = jx.load_benchmark(small_data / "dev").examples
    first = examples[0]
    result = jx.evaluate([first, examples[1]], {first.uid: first.gold_sql, examples[1].uid: "SELECT 'no'"})
    assert [(record["id"], record["scores"]["bird"]) for record in result.records] == [
        (first.uid, 1.0),
        (examples[1].uid, 0.0),
    ]
    assert result.numbers["accuracy"] == 0.5
    assert jx.evaluate(examples, {first.uid: first.gold_sql}, {"evaluate.limit": 1}).numbers["count"] == 1
    with pytest.raises(InputError, match=r"^examples: 2 examples have the id"):
        jx.evaluate([first, first], {first.uid: "SELECT 1"})
    with pytest.raises(InputError, match=r"^predictions: no predictions in it"):
        jx.evaluate([first], {})


def test_evaluate_samples_a_run_model_on_a_list_of_examples(
    run: jx.Run, small_data: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    examples = jx.load_benchmark(small_data / "dev").examples[:2]
    result = run.evaluate(examples, {"evaluate": {"sampling": {"max_new_tokens": 24}, "max_num_seqs": 4}})
    assert [item["id"] for item in result.records] == [record.uid for record in examples]
    assert (result.numbers["count"], capsys.readouterr().out) == (2, "")
    assert all("raise evaluate.sampling.max_new_tokens above 24" in warning for warning in result.warnings)


def test_evaluate_error_names_the_parameter_for_partial_predictions(small_data: Path) -> None:
    examples = jx.load_benchmark(small_data / "dev").examples
    some: dict[str, str | None] = {example.uid: example.gold_sql for example in examples[:-1]}
    with pytest.raises(InputError, match=rf"^predictions: 1 of {len(examples)} .*: allow_missing=True skips them"):
        jx.evaluate(small_data / "dev", some)
    numbers = jx.evaluate(small_data / "dev", some, allow_missing=True).numbers
    assert (numbers["missing"], numbers["count"], numbers["accuracy"]) == (1, len(examples) - 1, 1.0)
    more = {**some, examples[-1].uid: None, "other": "SELECT 1"}
    with pytest.raises(InputError, match=r"^predictions: 1 of .*: allow_extra=True skips"):
        jx.evaluate(small_data / "dev", more)
    assert jx.evaluate(small_data / "dev", more, allow_extra=True).numbers["extra"] == 1


@pytest.mark.parametrize("trains", [False, pytest.param(True, marks=pytest.mark.nightly)], ids=["finished", "trained"])
def test_readme_example_runs(
    run: jx.Run, small_data: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, *, trains: bool
) -> None:
    """Run the whole example; without the nightly mark, `train` is checked but returns a finished run."""
    monkeypatch.chdir(tmp_path)
    (tmp_path / "data").mkdir()
    (tmp_path / "data" / "dev").symlink_to(small_data / "dev")
    with closing(sqlite3.connect("shop.sqlite")) as connection, connection:
        connection.execute("CREATE TABLE orders(id INTEGER PRIMARY KEY, is_late INTEGER)")
        connection.execute("INSERT INTO orders VALUES (1, 0), (2, 1)")
    small = {
        "data": {"source": "folder", "dir": small_data, "evals": ["dev"], "select": {"limit_eval": 2}},
        "grpo": {"steps": 1, "prompts": 2, "num_generations": 2, "minibatches": 1},
        "rollout.max_num_seqs": 8, "sampling.max_new_tokens": 8,
        "validation": {"max_num_seqs": 8, "sampling": {"max_new_tokens": 8}},
    }  # fmt: skip
    trained: list[str] = []

    def train(config: str, *overrides: Override, **passed: Any) -> jx.Run:
        trained.append(jx.load_config(config, overrides).run.dir)
        caller = CallerInputs(**passed)
        caller.questions()
        return jx.train(config, *overrides, small, **passed) if trains else run

    (text,) = re.findall(
        r"^```python\n(import jaxrl_sql as jx\n.*?)^```$", README.read_text(), re.MULTILINE | re.DOTALL
    )
    text = text.replace("dev_0", jx.load_benchmark("data/dev").examples[0].uid).replace("import jaxrl_sql as jx\n", "")
    names: dict[str, Any] = {
        "jx": SimpleNamespace(**{name: getattr(jx, name) for name in jx.__all__} | {"train": train})
    }
    exec(text.replace("jx.evaluate", "_ = jx.evaluate"), names)  # noqa: S102 - a page of this project
    assert trained == ["runs/first", "runs/mine"]
    assert (names["_"], names["reply"].answers) == (1.0, 1)


def test_metrics_split_lines_at_newlines_and_drop_a_torn_last_line(tmp_path: Path) -> None:
    rows = [{"step": 0, "question": "One\u2028two\x85three?"}, {"step": 1, "question": "?"}]
    text = "".join(json.dumps(row, ensure_ascii=False) + "\n" for row in rows)
    (tmp_path / "metrics.jsonl").write_text(text + '{"step": 2, "ques', encoding="utf-8")
    result = jx.Run(tmp_path).metrics
    assert (result.to_dict("records") if hasattr(result, "to_dict") else result) == rows
    (tmp_path / "metrics.jsonl").write_text('{"step": 0}\n{"step: 1}\n{"step": 2}\n')
    with pytest.raises(InputError, match=r"metrics\.jsonl: line 2 is damaged: not JSON"):
        jx.Run(tmp_path).metrics  # noqa: B018


def test_invalid_arguments_raise_exceptions(small_data: Path) -> None:
    with pytest.raises(InputError, match=r"^overrides: unknown key grpo\.step"):
        jx.train(None, "grpo.step=3")
    with pytest.raises(InputError, match=r"^overrides: unknown key grpo\.step"):
        jx.load_config(None, {"grpo": {"step": 3}})
    with pytest.raises(InputError, match=r"^system artic: not one of .*; the nearest is arctic$"):
        jx.evaluate(small_data / "dev", {"a": "SELECT 1"}, system="artic")
    with pytest.raises(InputError, match="no such folder"):
        jx.evaluate(small_data / "nowhere", {"a": "SELECT 1"})
    with jx.Model(START) as model, pytest.raises(InputError, match=r"^database .*: no such file"):
        model.ask(small_data / "none.sqlite", "How many?")
    database = jx.load_benchmark(small_data / "dev").examples[0].db_path
    with (
        jx.Model(START, leave_out=["t"]) as model,
        pytest.raises(InputError, match=r"^leave_out t: requires a database on a server"),
    ):
        model.ask(database, "How many?")
    with (
        jx.Model(START, stand_in="s.sqlite") as model,
        pytest.raises(InputError, match=r"^stand_in s\.sqlite: only for a database of another"),
    ):
        model.ask(database, "How many?")


def test_an_error_suggests_a_command_line_with_all_options(tmp_path: Path) -> None:
    (tmp_path / "config.yaml").write_text("seed: 1\n")
    (tmp_path / "checkpoints/3").mkdir(parents=True)
    with pytest.raises(InputError, match=r"`jaxrl-sql export .* --step 3` writes that of the newest checkpoint$"):
        jx.Run(tmp_path).model()


def test_package_imports_lazily_and_lists_its_public_names() -> None:
    code = (
        "import sys, jaxrl_sql as jx; assert not {'jax', 'numpy', 'sqlexec_rs'} & set(sys.modules)\n"
        "assert {'train', 'Model', 'evaluate', 'RECIPES', 'Executor'} <= set(dir(jx))\n"
        "jx.load_config('configs/quickstart.yaml', ['grpo.steps=2']); assert 'jax' not in sys.modules\n"
        "assert 'arctic' in jx.RECIPES; assert not hasattr(jx, 'trian')\n"
        "assert jx.Executor is __import__('sqlexec_rs').Executor\n"
        "assert jx.__version__ == __import__('importlib.metadata').metadata.version('sqlexec-rs')"
    )
    subprocess.run([sys.executable, "-c", code], check=True)
