"""A run compiles its update and decoding once per length bucket, not once per step."""

from __future__ import annotations

import json
from collections import Counter
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import jax
import pytest

from jaxrl_sql.batch import bucket
from jaxrl_sql.commands.evaluate import main as evaluate_main
from jaxrl_sql.commands.sft import main as sft_main
from jaxrl_sql.commands.train import main
from jaxrl_sql.datagen.synth import SynthSpec, generate
from jaxrl_sql.models import ModelConfig, Norms, Rope, init_params, load_tokenizer, save_checkpoint
from jaxrl_sql.text2sql.benchmarks import load_split
from jaxrl_sql.text2sql.prompts.prompts import make_prompts
from jaxrl_sql.text2sql.recipes import RECIPES


@pytest.fixture
def compiled() -> Iterator[Counter[str]]:
    """Count compilations by the name of the function."""
    counts: Counter[str] = Counter()

    def count(event: str, _seconds: float, **names: Any) -> None:
        if event == "/jax/core/compile/backend_compile_duration":
            counts[str(names.get("fun_name")).removeprefix("jit(").removesuffix(")")] += 1

    jax.monitoring.register_event_duration_secs_listener(count)
    yield counts
    jax.monitoring.unregister_event_duration_listener(count)


@pytest.fixture(scope="module")
def arguments(tmp_path_factory: pytest.TempPathFactory) -> list[str]:
    """Return the command line of a small run from a checkpoint, `data.dir` first; tests append `run.dir`."""
    folder = tmp_path_factory.mktemp("small")
    data = folder / "data"
    generate(data, SynthSpec(train_dbs=6, dev_dbs=2, unseen_dbs=2, train_questions=24, dev_questions=8))
    tokenizer = load_tokenizer(data / "tokenizer")
    model = ModelConfig("qwen3", len(tokenizer), 24, 1, 2, 1, 12, 40, Rope(1e4), Norms(), True, True, False, 1024)
    save_checkpoint(folder / "start", model, init_params(model, jax.random.key(0)), tokenizer)
    return [
        f"data.dir={data}",
        "data.prompt=compact", "model.compute_dtype=same", "grpo.optim.lr=1e-4", "sft.optim.lr=1e-3",
        "data.evals=[dev,dev_unseen]", "data.max_prompt_tokens=320",
        f"model.checkpoint={folder}/start", "sampling.max_new_tokens=12", "rollout.max_num_seqs=4", "grpo.steps=6",
        "grpo.prompts=2", "grpo.dynamic_sampling.oversample=2", "grpo.num_generations=2", "grpo.advantage=batch",
        "validation.max_num_seqs=4", "validation.sampling.max_new_tokens=12", "run.display=none",
    ]  # fmt: skip


@pytest.mark.nightly
def test_update_and_decoding_compile_once_per_bucket(
    arguments: list[str], tmp_path: Path, compiled: Counter[str]
) -> None:
    """A small version of the quickstart: a checkpoint, more answers than are trained on, greedy on two splits."""
    data = Path(arguments[0].partition("=")[2])
    tokenizer = load_tokenizer(data / "tokenizer")
    lengths = {}
    for split in ("train", "dev", "dev_unseen"):
        examples = load_split(data, split, 0).examples
        prompts = make_prompts(examples, RECIPES["arctic"].style("compact"), tokenizer, 320)
        lengths[split] = [len(prompt.token_ids) for prompt in prompts.prompts]
    buckets = {split: {bucket(length) for length in result} for split, result in lengths.items()}
    assert len(set(lengths["train"])) > 6
    assert len(buckets["train"]) > 1, "all prompts are in one bucket, so the limit is not tested"

    compiled.clear()
    assert main([*arguments, f"run.dir={tmp_path}/run"]) == 0
    sampled, greedy = len(buckets["train"]), len(buckets["dev"] | buckets["dev_unseen"])
    assert 1 <= compiled["update"] <= sampled
    # A chunk's shapes are the bucket of the longest prompt and the size of the prompt pool, which grows with it.
    assert 2 <= compiled["decode_chunk"] <= 2 * sampled + 2 * greedy
    # A chunk of prompts is 1, 2 or 4 of a width, and its pool grows too.
    assert 2 <= compiled["prefill_chunk"] <= 3 * (2 * sampled + 2 * greedy)
    # Nothing else is compiled per step: twice the steps only compile the remaining buckets.
    before = compiled.copy()
    assert main([*arguments, f"run.dir={tmp_path}/longer", "grpo.steps=12"]) == 0
    assert compiled["update"] - before["update"] <= sampled  # each run creates its update again
    assert compiled["decode_chunk"] <= 2 * sampled + 2 * greedy
    per_step = {name: n - before[name] for name, n in compiled.items() if n - before[name] >= 12}
    assert per_step == {}, "these are compiled in every step"


@pytest.mark.slow
@pytest.mark.parametrize("is_exact", [True, pytest.param(False, marks=pytest.mark.nightly)])
def test_exact_sampler_deltas_use_engine_log_probabilities(
    is_exact: bool, arguments: list[str], tmp_path: Path, compiled: Counter[str]
) -> None:
    """Two minibatches need the old policy's log-probabilities: by a scoring pass or from the engine."""
    run = tmp_path / "run"
    of_two = ["grpo.minibatches=2", "grpo.steps=1", "data.evals=[dev]", "run.pad_to_max=true", f"run.dir={run}"]
    assert main([*arguments, *of_two, f"rollout.exact={str(is_exact).lower()}"]) == 0
    assert (compiled["update"] > 0, compiled["score"] > 0) == (True, not is_exact)
    rows = [json.loads(line) for line in (run / "metrics.jsonl").read_text().splitlines()]
    first = next(row for row in rows if row["phase"] == "grpo")
    assert (first["policy/sampler_delta_max"] == 0) == is_exact
    assert first["policy/ratio_mean"] == pytest.approx(1, abs=1e-3)


@pytest.mark.slow
@pytest.mark.parametrize("few", [True, pytest.param(False, marks=pytest.mark.nightly)])
def test_full_padding_compiles_one_program_for_supervised_steps_and_one_for_held_out_loss(
    few: bool, arguments: list[str], tmp_path: Path, compiled: Counter[str], capsys: pytest.CaptureFixture[str]
) -> None:
    """Answers of several buckets, which otherwise need several programs."""
    taught = [
        *arguments, "sft.steps=8", "sft.databases=1", "sft.questions=2", "sft.held_out=0.2", "sft.eval_every=8",
        "sft.max_completion_tokens=96", "data.evals=[dev]", "run.display=plain",
    ]  # fmt: skip
    compiled.clear()
    assert sft_main([*taught, f"run.pad_to_max={str(few).lower()}", f"run.dir={tmp_path}/run"]) == 0
    if few:
        assert (compiled["update"], compiled["measure"]) == (1, 1)
        assert "compiles up to 1 update program and" in capsys.readouterr().out
    else:
        assert compiled["update"] > 1


@pytest.mark.slow
def test_full_padding_shares_programs_across_evaluation_parts(
    arguments: list[str], tmp_path: Path, compiled: Counter[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    """Two parts with different prompts; answers equal those with one program per length."""
    monkeypatch.setattr("jaxrl_sql.inference.benchmark_evaluation._MAX_QUESTIONS", 8)
    values = dict(argument.split("=", 1) for argument in arguments)
    data, start = values["data.dir"], values["model.checkpoint"]
    command = [
        "--data", f"{data}/dev", "--model", start, "evaluate.sampling.max_new_tokens=12", "evaluate.max_num_seqs=8",
        "evaluate.limit=10", "data.max_prompt_tokens=320", "data.prompt=compact", "run.display=none",
    ]  # fmt: skip
    programs, answers = [], []
    for few in (False, True):
        jax.clear_caches()
        compiled.clear()
        out = tmp_path / str(few)
        assert evaluate_main([*command, f"run.pad_to_max={str(few).lower()}", "--out", str(out)]) == 0
        programs.append({name: compiled[name] for name in ("prefill_chunk", "decode_chunk")})
        answers.append([json.loads(line)["sql"] for line in (out / "records.jsonl").read_text().splitlines()])
    assert answers[0] == answers[1]
    assert len(answers[0]) == 5 + 5
    assert programs[1] == {"prefill_chunk": 1, "decode_chunk": 1}
    assert programs[0]["prefill_chunk"] > 3
