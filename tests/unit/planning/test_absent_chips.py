"""What XLA makes of the programs for GPUs and TPUs, on a machine that has none, where JAX's plugin for them is.

Run as a test it starts itself as a script: a plugin stays in the process that has loaded it.
"""

from __future__ import annotations

import functools
import importlib.util
import json
import os
import re
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

from jaxrl_sql.planning import gpus
from jaxrl_sql.planning.chips import CHIPS, QUIET
from jaxrl_sql.planning.hlo import collectives
from jaxrl_sql.types import InputError

SMALL = Path(__file__).parents[2] / "small.yaml"

NEEDS_PLUGIN = pytest.mark.skipif(
    importlib.util.find_spec("jax_cuda12_plugin") is None, reason="no plugin: the extra gpu-plan"
)
NEEDS_LIBTPU = pytest.mark.skipif(importlib.util.find_spec("libtpu") is None, reason="no libtpu: the extra tpu-plan")
CHIP = pytest.mark.parametrize(
    "chip", [pytest.param("h100", marks=NEEDS_PLUGIN), pytest.param("v5e", marks=NEEDS_LIBTPU)]
)
TOPOLOGY = {"h100": "h100:4", "v5e": "v5e:2x2"}


def test_gpus_are_those_of_the_table_of_chips() -> None:
    for name, gpu in gpus.GPUS.items():
        chip = CHIPS[name]
        assert (gpu.memory, gpu.bandwidth) == (chip.memory, chip.hbm)
        units, rate = gpu.matrix[16]
        # The clock is the highest one; the data sheet's rate is at one a little below it.
        flops = 2 * gpu.multiprocessors * units * rate * gpu.clock * 1e9
        assert 0.99 * chip.flops < flops < 1.1 * chip.flops
        assert gpus.target_config(gpu).count("{") == gpus.target_config(gpu).count("}")


def test_a_second_plugin_is_refused_by_name(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Installed packages as Python finds them: JAX would register both under one name."""
    for name in ("xla_cuda12", "xla_rocm7"):
        package = tmp_path / f"{name}-1.0.dist-info"
        package.mkdir()
        (package / "METADATA").write_text(f"Metadata-Version: 2.1\nName: {name}\nVersion: 1.0\n")
        (package / "entry_points.txt").write_text(f"[jax_plugins]\n{name} = jax_plugins.{name}\n")
    monkeypatch.syspath_prepend(tmp_path)
    with pytest.raises(InputError, match="the JAX plugins xla_cuda12 and xla_rocm7 are installed"):
        gpus.gpu_devices("h100", 8)


@functools.cache
def run(*case: str) -> Any:
    """Run this file as a script, once per case, and return its result."""
    env = os.environ | {"JAX_PLATFORMS": "cpu"} | QUIET
    env["PYTHONPATH"] = os.pathsep.join(entry for entry in sys.path if entry)
    done = subprocess.run([sys.executable, __file__, *case], capture_output=True, text=True, env=env, check=False)
    assert done.returncode == 0, done.stderr[-3000:]
    return json.loads(done.stdout.splitlines()[-1])


@pytest.mark.slow
@NEEDS_PLUGIN
@pytest.mark.parametrize(
    "key_heads",
    [
        pytest.param("2", id="heads-split"),
        pytest.param("1", id="key-heads-repeated", marks=pytest.mark.nightly),
    ],
)
def test_the_update_compiles_for_four_gpus_with_heads_split(key_heads: str) -> None:
    found = run("h100", "update", key_heads)
    assert found["kernels"] == [3, 3], "prompts to prompts, completions to both: a kernel each way"
    assert found["biases"] == []


@pytest.mark.slow
@CHIP
def test_no_gradient_is_added_up_in_bfloat16(chip: str) -> None:
    """The look-up of tokens gives one gradient a token, which are added up by scattering."""
    scatters = run(chip, "update", "2")["scatters"]
    assert set(scatters) == {"f32"}


PACKED = ["grpo.packing=true", "grpo.num_generations=8", "grpo.prompts=4", "grpo.gradient_accumulation_steps=2"]


@pytest.mark.nightly
@NEEDS_PLUGIN
def test_a_packed_update_compiles_for_four_gpus_with_a_way_for_each_number_of_rows() -> None:
    found = run("h100", "update", "2", *PACKED)
    assert found["ways"] == [3]
    assert found["kernels"] == [3 * 3, 3 * 3], "prompts to prompts, answers to both: a kernel each way"
    assert found["biases"] == []


@pytest.mark.slow
@pytest.mark.nightly
@NEEDS_LIBTPU
def test_a_packed_update_compiles_for_four_tpus_with_a_way_for_each_number_of_rows() -> None:
    """Forward twice (remat), and back to queries and to keys: a kernel each, in each of three ways."""
    found = run("v5e", "update", "2", "model.remat=full", *PACKED)
    assert found["ways"] == [3]
    assert found["splash"] == {"fwd": 2 * 3, "dq": 3, "dkv": 3}
    assert set(found["scatters"]) == {"f32"}
    apart = run("v5e", "update", "2", "model.remat=full", *PACKED, "grpo.packing=false")
    assert apart["ways"] == []
    assert apart["splash"] == {"fwd": 2, "dq": 1, "dkv": 1}


@pytest.mark.slow
@pytest.mark.nightly
@NEEDS_PLUGIN
def test_what_attention_read_is_kept_where_remat_names_it() -> None:
    assert run("h100", "update", "2", "model.remat=query,key,value,attended")["kernels"] == [3, 3]
    assert run("h100", "update", "2", "model.remat=full")["kernels"] == [6, 3]


@pytest.mark.slow
@CHIP
def test_decoding_copies_no_weights_and_sorts_no_vocabulary(chip: str) -> None:
    found = run(chip, "decode", "split")
    assert found["copies"] == []
    assert found["sorts"] == []


@pytest.mark.slow
@NEEDS_PLUGIN
def test_copies_of_stacked_weights_are_seen() -> None:
    """Stacked weights are sliced in each step: the test above would see copies of weights."""
    assert len(run("h100", "decode", "stacked")["copies"]) >= 6


@pytest.mark.slow
@CHIP
def test_a_decode_step_reads_the_cache_by_kernels(chip: str) -> None:
    """Two calls a layer, of prompts and of the slots' own blocks, and no part of a block in memory beside them."""
    found = run(chip, "decode", "split", "rollout.attention=pallas")
    assert found["kernels"] == 2 * 3
    assert found["parts"] == []
    by_xla = run(chip, "decode", "split")
    assert by_xla["kernels"] == 0
    assert by_xla["parts"]


@pytest.mark.slow
@pytest.mark.parametrize(
    "chip",
    [
        pytest.param("h100", marks=[NEEDS_PLUGIN, pytest.mark.nightly]),
        pytest.param("v5e", marks=NEEDS_LIBTPU),
    ],
)
def test_a_copy_over_two_chips_reads_the_cache_by_kernels_and_meets_no_other_copy(chip: str) -> None:
    """Each chip runs the kernels on its heads; what crosses chips are states of the copy's own two, and no weights."""
    found = run(chip, "decode", "split", "rollout.attention=pallas", "rollout.mesh=2x2")
    assert found["kernels"] == 2 * 3
    assert found["parts"] == []
    assert {chips for _, chips in found["met"]} == {2}
    assert {kind for kind, _ in found["met"]} <= {"all-reduce", "all-gather", "collective-permute"}
    weight = 2 * 128 * 256 / 2  # the smallest matrix of a layer, a chip's half of it
    assert found["most"] < weight


@pytest.mark.slow
@NEEDS_PLUGIN
def test_the_command_plans_for_gpus_that_are_not_there() -> None:
    command = [sys.executable, "-m", "jaxrl_sql", "plan", "--topology", "h100:8", "--mesh", "1x2x4", "--json"]
    command += ["--config", str(SMALL)]
    sizes = "d_model=128 n_layers=2 n_heads=4 n_kv_heads=4 head_dim=32 d_ff=256 dtype=bfloat16".split()
    overrides = "grpo.prompts=4 grpo.num_generations=2 sampling.max_new_tokens=32 data.max_prompt_tokens=128".split()
    overrides += "rollout.max_num_seqs=8 validation.max_num_seqs=8".split()
    named = [*(f"model.{size}" for size in sizes), *overrides]
    done = subprocess.run([*command, "--compile", "update", *named], capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr[-3000:]
    (plan,) = json.loads(done.stdout)["plans"]
    assert plan["programs"]["update"]["temporaries"] > 1 << 20
    assert plan["programs"]["update"]["received"]["all-gather"] > 0
    # Loops' bodies are counted once, and what runs beside the products counts too.
    assert 0.3 < plan["programs"]["update"]["flops"] / plan["phases"]["update"]["flops"] < 1.5


def _lowered(chip: str, case: str, option: str, *overrides: str) -> str:
    """Compile a small program for one chip, or an update for four, and return its text."""
    from jaxrl_sql.config import TrainConfig, load_config
    from jaxrl_sql.models import ModelConfig
    from jaxrl_sql.parallel import make_mesh
    from jaxrl_sql.planning import programs
    from jaxrl_sql.planning.chips import find_topology
    from jaxrl_sql.planning.lengths import between
    from jaxrl_sql.planning.memory import PlannedModel
    from jaxrl_sql.planning.workload import find_workload, with_packing

    sizes = "grpo.prompts=4 grpo.num_generations=2 sampling.max_new_tokens=32 rollout.max_num_seqs=8 sampling.top_p=0.9"
    devices = find_topology(TOPOLOGY[chip]).devices()
    assert devices is not None
    config = load_config(TrainConfig, SMALL, ["model.dtype=bfloat16", *sizes.split(), *overrides])
    sections = config.workload(60)
    if case == "update":
        model = ModelConfig("qwen3", 512, 128, 1, 4, int(option), 32, 256, 1e4, 1e-6, True, True, False, 1024)
        whole = find_workload(config.model, sections, 2)
        work = (with_packing(whole, between(8, 32)) if config.grpo.packing else whole).update
        assert work is not None
        setting = programs.Setting(sections, PlannedModel(config.model, model), make_mesh(1, 2, 2, devices))
        with gpus.stated_cudnn():
            return str(programs.lower_update(setting, work).compile().as_text())
    if option == "stacked":
        programs._weights = programs._params
    model = ModelConfig("qwen3", 512, 128, 3, 4, 2, 64, 256, 1e4, 1e-6, True, True, False, 1024)
    load = find_workload(config.model, sections, 1).rollout
    assert load is not None
    mesh = make_mesh(1, 2, 2, devices) if "x" in config.rollout.mesh else make_mesh(1, 1, 1, devices[:1])
    setting = programs.Setting(sections, PlannedModel(config.model, model), mesh).sampling
    return str(programs.lower_decode(setting, load).compile().as_text())


def _main(chip: str, case: str, option: str, *overrides: str) -> dict[str, Any]:
    text = _lowered(chip, case, option, *overrides)
    if case == "update":
        kernels = re.findall(r'custom_call_target="__cudnn\$fmha(\w+)"', text)
        backward = sum(name.endswith("Backward") for name in kernels)
        scatters = re.findall(r"= \(?(f32|bf16|f16)\[[^ ]* scatter\(", text)
        biases = [name for name in kernels if "Bias" in name]
        splash = re.findall(r"%splash_mha_(fwd|dq|dkv)\w*[.\d]* = [^\n]*custom-call\(", text)
        return {
            "kernels": [len(kernels) - backward, backward],
            "biases": biases,
            "scatters": scatters,
            "splash": {name: splash.count(name) for name in ("fwd", "dq", "dkv")},
            "ways": [len(ways.split(",")) for ways in re.findall(r"branch_computations=\{([^}]*)\}", text)],
        }
    copied = re.findall(r"bf16\[(?:1,)?(?:128,256|256,128)\][^ ]* (?:copy|slice|dynamic-slice)\(", text)
    kernels = len(re.findall(r'custom_call_target="(?:__gpu\$xla.gpu.triton|tpu_custom_call)"', text))
    # What each of the 8 blocks of a pool gives to its readers, before it is merged: [Y,K,G,M,Q] in float32.
    heads = 1 if "rollout.mesh=2x2" in overrides else 2
    parts = re.findall(rf"= f32\[8,{heads},\d+,2,64\]", text)
    met = collectives(text)
    return {
        "met": [(one.kind, one.chips) for one in met],
        "most": max((one.received for one in met), default=0.0),
        "kernels": kernels,
        "parts": parts,
        "copies": copied,
        "sorts": re.findall(r"f32\[[\d,]*512\][^\n]* sort\(", text),
    }


if __name__ == "__main__":
    sys.path.insert(0, str(Path(__file__).resolve().parents[3]))
    sys.stdout.write(json.dumps(_main(*sys.argv[1:])) + "\n")
