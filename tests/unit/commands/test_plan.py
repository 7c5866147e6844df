"""`plan` as a user calls it: what it prints by formula, how it refuses, and for a TPU where its compiler is."""

from __future__ import annotations

import importlib.util
import json
import os
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

from jaxrl_sql.commands import plan

SEVEN = [
    "--config",
    "configs/arctic.yaml",
    "model.shape=qwen2.5-coder-7b",
    "grpo.gradient_accumulation_steps=4",
    "--compile",
    "none",
]


def test_the_best_of_the_meshes_that_fit_is_named(capsys: pytest.CaptureFixture[str]) -> None:
    asked = ["--topology", "v5p:4x4x2", "--mesh", "1x32x1", "1x16x2", "32x1x1"]
    assert plan.main([*SEVEN, *asked, "--json"]) == 0
    said: dict[str, Any] = json.loads(capsys.readouterr().out)
    assert [one["mesh"]["fsdp"] for one in said["plans"]] == [32, 16, 1]
    fitting = [one for one in said["plans"] if one["fits"]]
    assert said["best"] == min(fitting, key=lambda one: one["seconds"])["mesh"]
    for one in said["plans"]:
        memory = dict(one["memory"])
        total = memory.pop("total")
        assert one["total"] == total <= sum(memory.values())
        assert one["seconds"] == pytest.approx(sum(phase["seconds"] for phase in one["phases"].values()))
    assert plan.main([*SEVEN, *asked]) == 0
    text = capsys.readouterr().out
    assert "32 chips as data=1 x fsdp=32 x tensor=1; 7,615,616,512 parameters" in text
    assert "of these meshes:" in text
    assert "the best" in text


def test_a_second_file_lays_the_run_out_on_a_machine(capsys: pytest.CaptureFixture[str]) -> None:
    files = ["--config", "configs/sql_r1.yaml", "--config", "configs/on/h100x8.yaml"]
    asked = ["--topology", "h100:8", "--compile", "none", "model.shape=qwen2.5-coder-7b"]
    assert plan.main([*files, *asked]) == 0
    text = capsys.readouterr().out
    assert "8 chips as data=1 x fsdp=2 x tensor=4" in text
    assert "1 update(s) of 8 prompts in 4 part(s)" in text
    assert "it fits" in text


def test_what_does_not_fit_says_so_and_what_helps(capsys: pytest.CaptureFixture[str]) -> None:
    assert plan.main([*SEVEN, "--topology", "v5p:4x4x2", "--mesh=1x32x1", "grpo.gradient_accumulation_steps=1"]) == 0
    text = capsys.readouterr().out
    assert "it does not fit: " in text
    assert "grpo.gradient_accumulation_steps=4" in text


@pytest.mark.parametrize(
    ("arguments", "words"),
    [
        (["--topology", "v5x:2x2"], "--topology v5x:2x2: unknown; known are v5e:2x2, "),
        (["--topology", "v5e:4x4", "--mesh", "1x8x1"], "--mesh 1x8x1 does not multiply to the 16 chips"),
        (
            ["--topology", "v5e:4x4", "--compile", "updates"],
            "--compile updates: 'updates' is not one of all, none, update",
        ),
        (["--topology", "v5e:4x4", "--answer-tokens", "5000"], "up to sampling.max_new_tokens=4096 tokens"),
        (["--topology", "v5e:4x4", "model.shape=qwen"], "model.shape='qwen' is none of qwen2.5-coder-0.5b"),
        (["--topology", "v5e:4x4", "model.shapes=qwen"], "unknown key model.shapes; the nearest is model.shape"),
        (["--topology", "v5e:4x8", "--mesh", "1x1x32"], "mesh: layers/q: dimension heads of size 28 is not divided"),
    ],
)
def test_bad_input_is_one_line_and_code_2(arguments: list[str], words: str, capsys: pytest.CaptureFixture[str]) -> None:
    assert plan.main([*SEVEN, *arguments]) == 2
    said = capsys.readouterr().err
    assert said.startswith("error: ")
    assert words in said
    assert said.count("\n") == 1


def test_without_libtpu_a_tpu_is_told_how_to_get_it(
    capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    find = importlib.util.find_spec
    monkeypatch.setattr(importlib.util, "find_spec", lambda name: None if name == "libtpu" else find(name))
    assert plan.main(["--topology", "v5e:2x2", "grpo.prompts=16", "model.checkpoint=configs/quickstart_start"]) == 2
    assert "pip install 'jaxrl_sql[tpu-plan]'" in capsys.readouterr().err


def test_this_machine_is_a_topology_too(capsys: pytest.CaptureFixture[str]) -> None:
    small = [
        "--config",
        "tests/small.yaml",
        "model.d_model=32",
        "model.n_layers=2",
        "grpo.prompts=2",
        "rollout.max_num_seqs=4",
        "validation.max_num_seqs=2",
    ]
    assert plan.main(["--topology", "cpu", "--compile", "prefill", "--json", *small]) == 0
    (one,) = json.loads(capsys.readouterr().out)["plans"]
    assert one["programs"]["prefill"]["arguments"] > 0
    assert one["fits"]


@pytest.mark.slow
@pytest.mark.skipif(importlib.util.find_spec("libtpu") is None, reason="libtpu is not installed: the extra tpu-plan")
def test_a_small_run_compiles_for_four_chips(tmp_path: Path) -> None:
    """All programs of a step; the update's attention is splash, which the compiler takes apart no further."""
    small = [
        "--config", "tests/small.yaml",
        "model.dtype=bfloat16", "model.n_layers=1", "model.attention=splash", "grpo.prompts=4",
        "grpo.num_generations=2",
        "rollout.max_num_seqs=8", "sampling.max_new_tokens=32", "data.max_prompt_tokens=64",
        "validation.max_num_seqs=4",
    ]  # fmt: skip
    command = [sys.executable, "-m", "jaxrl_sql", "plan", "--topology", "v5e:2x2", "--mesh", "1x4x1", "--json", *small]
    env = os.environ | {"JAX_PLATFORMS": "cpu", "PYTHONPATH": os.pathsep.join(entry for entry in sys.path if entry)}
    done = subprocess.run(command, capture_output=True, text=True, env=env, check=False, cwd=Path(__file__).parents[3])
    assert done.returncode == 0, done.stderr[-3000:]
    (one,) = json.loads(done.stdout)["plans"]
    programs, memory = one["programs"], one["memory"]
    assert set(programs) == {"update", "prefill", "decode"}
    for name in ("update", "decode"):
        assert programs[name]["received"]["all-gather"] > 0, f"{name} has its weights split over four chips"
    assert programs["update"]["arguments"] > memory["weights"] + memory["optimizer"]
