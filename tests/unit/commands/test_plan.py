"""The `plan` command: output by formula, errors, and the TPU compiler's figures if libtpu is installed."""

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


def test_best_mesh_that_fits_is_printed(capsys: pytest.CaptureFixture[str]) -> None:
    options = ["--topology", "v5p:4x4x2", "--mesh", "1x32x1", "1x16x2", "32x1x1"]
    assert plan.main([*SEVEN, *options, "--json"]) == 0
    output: dict[str, Any] = json.loads(capsys.readouterr().out)
    assert [element["mesh"]["fsdp"] for element in output["plans"]] == [32, 16, 1]
    fitting = [entry for entry in output["plans"] if entry["fits"]]
    assert output["best"] == min(fitting, key=lambda one: one["seconds"])["mesh"]
    for item in output["plans"]:
        memory = dict(item["memory"])
        total = memory.pop("total")
        assert item["total"] == total <= sum(memory.values())
        assert item["seconds"] == pytest.approx(sum(phase["seconds"] for phase in item["phases"].values()))
    assert plan.main([*SEVEN, *options]) == 0
    text = capsys.readouterr().out
    assert "32 chips as data=1 x fsdp=32 x tensor=1; 7,615,616,512 parameters" in text
    assert "of these meshes:" in text
    assert "the best" in text


def test_overlay_file_sets_the_machine(capsys: pytest.CaptureFixture[str]) -> None:
    files = ["--config", "configs/sql_r1.yaml", "--config", "configs/on/h100x8.yaml"]
    options = ["--topology", "h100:8", "--compile", "none", "model.shape=qwen2.5-coder-7b"]
    assert plan.main([*files, *options]) == 0
    text = capsys.readouterr().out
    assert "8 chips as data=1 x fsdp=2 x tensor=4" in text
    assert "; 1 update of 8 prompts in 4 parts" in text
    assert "per second at most (if all prompts and answers have the maximum length)" in text
    assert "it fits" in text


def test_plan_that_does_not_fit_suggests_changes(capsys: pytest.CaptureFixture[str]) -> None:
    assert plan.main([*SEVEN, "--topology", "v5p:4x4x2", "--mesh=1x32x1", "grpo.gradient_accumulation_steps=1"]) == 0
    text = capsys.readouterr().out
    assert "it does not fit: " in text
    assert "grpo.gradient_accumulation_steps=4" in text


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (["--topology", "v5x:2x2"], "--topology v5x:2x2: unknown; known are v5e:2x2, "),
        (["--topology", "v5e:4x4", "--mesh", "1x8x1"], "--mesh 1x8x1 does not multiply to the 16 chips"),
        (
            ["--topology", "v5e:4x4", "--compile", "updates"],
            "--compile updates: 'updates' is not one of all, none, update",
        ),
        (["--topology", "v5e:4x4", "--answer-tokens", "5000"], "up to sampling.max_new_tokens=4096 tokens"),
        (["--topology", "v5e:4x4", "model.shape=qwen"], "model.shape='qwen' is unknown; valid are qwen2.5-coder-0.5b"),
        (["--topology", "v5e:4x4", "model.shapes=qwen"], "unknown key model.shapes; the nearest is model.shape"),
        (["--topology", "v5e:4x8", "--mesh", "1x1x32"], "mesh: layers/q: dimension heads of size 28 is not divisible"),
    ],
)
def test_invalid_input_is_reported_in_one_line_with_code_2(
    arguments: list[str], message: str, capsys: pytest.CaptureFixture[str]
) -> None:
    assert plan.main([*SEVEN, *arguments]) == 2
    output = capsys.readouterr().err
    assert output.startswith("error: ")
    assert message in output
    assert output.count("\n") == 1


def test_tpu_without_libtpu_prints_how_to_install_it(
    capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    find = importlib.util.find_spec
    monkeypatch.setattr(importlib.util, "find_spec", lambda name: None if name == "libtpu" else find(name))
    assert plan.main(["--topology", "v5e:2x2", "grpo.prompts=16", "model.checkpoint=configs/quickstart_start"]) == 2
    assert "pip install 'jaxrl_sql[tpu-plan]'" in capsys.readouterr().err


def test_host_is_a_valid_topology(capsys: pytest.CaptureFixture[str]) -> None:
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
    (item,) = json.loads(capsys.readouterr().out)["plans"]
    assert item["programs"]["prefill"]["arguments"] > 0
    assert item["fits"]


@pytest.mark.slow
@pytest.mark.skipif(importlib.util.find_spec("libtpu") is None, reason="libtpu is not installed: the extra tpu-plan")
def test_small_run_compiles_for_four_chips(tmp_path: Path) -> None:
    """Compile all programs of a step. The update uses splash attention, which the compiler treats as opaque."""
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
    (item,) = json.loads(done.stdout)["plans"]
    programs, memory = item["programs"], item["memory"]
    assert set(programs) == {"update", "prefill", "decode"}
    for name in ("update", "decode"):
        assert programs[name]["received"]["all-gather"] > 0, f"{name} shards its weights over four chips"
    assert programs["update"]["arguments"] > memory["weights"] + memory["optimizer"]
