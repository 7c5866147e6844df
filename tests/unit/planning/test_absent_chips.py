"""Programs compiled for GPUs and TPUs on a machine without them, if JAX's plugin for them is installed.

As a test this file runs itself as a script, because a plugin stays loaded in its process.
"""

from __future__ import annotations

import functools
import importlib.util
import json
import os
import re
import subprocess
import sys
import tempfile
import warnings
from pathlib import Path
from typing import Any

import pytest

from jaxrl_sql.planning import gpus, hlo
from jaxrl_sql.planning.chips import CHIPS, QUIET
from jaxrl_sql.types import InputError

LOGITS = (64, 151_936)
SMALL = Path(__file__).parents[2] / "small.yaml"
CONFIGS = Path(__file__).parents[3] / "configs"

NEEDS_PLUGIN = pytest.mark.skipif(
    importlib.util.find_spec("jax_cuda12_plugin") is None, reason="no plugin: the extra gpu-plan"
)
NEEDS_LIBTPU = pytest.mark.skipif(importlib.util.find_spec("libtpu") is None, reason="no libtpu: the extra tpu-plan")
CHIP = pytest.mark.parametrize(
    "chip", [pytest.param("h100", marks=NEEDS_PLUGIN), pytest.param("v5e", marks=NEEDS_LIBTPU)]
)
TOPOLOGY = {"h100": "h100:4", "h200": "h200:1", "v5e": "v5e:2x2"}


def test_gpu_properties_equal_the_table_of_chips() -> None:
    for name, gpu in gpus.GPUS.items():
        chip = CHIPS[name]
        assert (gpu.memory, gpu.bandwidth) == (chip.memory, chip.hbm)
        units, rate = gpu.matrix[16]
        # The clock is the maximum; the data sheet's rate is for a clock slightly below it.
        flops = 2 * gpu.multiprocessors * units * rate * gpu.clock * 1e9
        assert 0.99 * chip.flops < flops < 1.1 * chip.flops
        assert gpus.target_config(gpu).count("{") == gpus.target_config(gpu).count("}")


def test_second_plugin_is_rejected_by_name(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Installed packages as Python lists them: JAX would register both under one name."""
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
def test_update_compiles_for_four_gpus_with_heads_split(key_heads: str) -> None:
    result = run("h100", "update", key_heads)
    assert result["kernels"] == [3, 3], "prompts to prompts, completions to both: one kernel per direction"
    assert result["biases"] == []


@pytest.mark.slow
@CHIP
def test_no_gradient_is_summed_in_bfloat16(chip: str) -> None:
    """The embedding look-up gives one gradient per token; a scatter sums them."""
    scatters = run(chip, "update", "2")["scatters"]
    assert set(scatters) == {"f32"}


PACKED = ["grpo.packing=true", "grpo.num_generations=8", "grpo.prompts=4", "grpo.gradient_accumulation_steps=2"]


@pytest.mark.nightly
@NEEDS_PLUGIN
def test_packed_update_for_four_gpus_has_a_branch_per_number_of_rows() -> None:
    result = run("h100", "update", "2", *PACKED)
    assert result["branches"] == [3]
    assert result["kernels"] == [3 * 3, 3 * 3], "prompts to prompts, answers to both: one kernel per direction"
    assert result["biases"] == []


@pytest.mark.slow
@pytest.mark.nightly
@NEEDS_LIBTPU
def test_packed_update_for_four_tpus_has_a_branch_per_number_of_rows() -> None:
    """Two forward passes (remat), and the gradients of queries and keys: one kernel each, in each of three branches."""
    result = run("v5e", "update", "2", "model.remat=full", *PACKED)
    assert result["branches"] == [3]
    assert result["splash"] == {"fwd": 2 * 3, "dq": 3, "dkv": 3}
    assert set(result["scatters"]) == {"f32"}
    apart = run("v5e", "update", "2", "model.remat=full", *PACKED, "grpo.packing=false")
    assert apart["branches"] == []
    assert apart["splash"] == {"fwd": 2, "dq": 1, "dkv": 1}


@pytest.mark.slow
@pytest.mark.nightly
@NEEDS_PLUGIN
def test_named_attention_output_is_not_recomputed() -> None:
    assert run("h100", "update", "2", "model.remat=query,key,value,attended")["kernels"] == [3, 3]
    assert run("h100", "update", "2", "model.remat=full")["kernels"] == [6, 3]


@pytest.mark.slow
@CHIP
def test_decoding_copies_no_weights_and_sorts_no_vocabulary(chip: str) -> None:
    result = run(chip, "decode", "split")
    assert result["copies"] == []
    assert result["sorts"] == []


@pytest.mark.slow
@NEEDS_PLUGIN
@pytest.mark.parametrize("limits", ["top_k", "top_p", "top_k,top_p"])
def test_truncation_adds_few_kernels_and_passes_over_the_logits(limits: str) -> None:
    """If the likeliest tokens suffice; before, the same step searched the vocabulary with 490 kernels more."""
    plain, truncated = run("h200", "sample", ""), run("h200", "sample", limits)
    assert truncated["kernels"] <= plain["kernels"] + 25
    assert truncated["passes"] <= plain["passes"] + 3
    assert truncated["longest_sort"] <= 1024
    assert truncated["kernels_of_search"] > 100, "the branch that searches the vocabulary is found and not counted"


@pytest.mark.slow
@NEEDS_PLUGIN
def test_gpus_of_equal_kind_share_a_program_in_the_cache() -> None:
    """Copies of the engine compile in turns for it (`parallel.compile_once`); a program for one GPU is not for two."""
    result = run("h100", "cache", "")
    assert result["first two GPUs"] == 1
    assert result["last two GPUs"] == 1
    assert result["one GPU"] == 2


@pytest.mark.slow
@NEEDS_PLUGIN
def test_copies_of_stacked_weights_are_detected() -> None:
    """Stacked weights are sliced in each step: the check of the test above detects these copies."""
    assert len(run("h100", "decode", "stacked")["copies"]) >= 6


@pytest.mark.slow
@CHIP
def test_decode_step_reads_the_cache_with_kernels(chip: str) -> None:
    """Two calls per layer, for prompts and for the slots' blocks, and no partial result per block in memory."""
    result = run(chip, "decode", "split", "rollout.attention=pallas")
    assert result["kernels"] == 2 * 3
    assert result["parts"] == []
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
def test_replica_on_two_chips_uses_kernels_and_communicates_with_no_other(chip: str) -> None:
    """Each chip runs the kernels on its heads; the two chips of a replica exchange states, and no weights."""
    result = run(chip, "decode", "split", "rollout.attention=pallas", "rollout.mesh=2x2")
    assert result["kernels"] == 2 * 3
    assert result["parts"] == []
    assert {chips for _, chips in result["met"]} == {2}
    # The last two distribute the rows in which top-p sorts the likeliest tokens.
    kinds = {"all-reduce", "all-gather", "collective-permute", "all-to-all", "reduce-scatter"}
    assert {kind for kind, _ in result["met"]} <= kinds
    weight = 2 * 128 * 256 / 2  # the smallest matrix of a layer, a chip's half of it
    assert result["most"] < weight


@pytest.mark.slow
@NEEDS_PLUGIN
def test_plan_command_compiles_for_absent_gpus() -> None:
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
    # Loop bodies are counted once, and other operations than products count too.
    assert 0.3 < plan["programs"]["update"]["flops"] / plan["phases"]["update"]["flops"] < 1.5


@pytest.mark.slow
@NEEDS_PLUGIN
@pytest.mark.parametrize(("size", "topology"), [("1.5B", "rtx4090:1"), ("7B", "h100:1")])
def test_update_of_own_gpu_needs_no_more_than_the_formula(size: str, topology: str) -> None:
    """Compile the update of a published model's shape in half a minute of two cores."""
    command = [sys.executable, "-m", "jaxrl_sql", "plan", "--config", str(CONFIGS / "own_gpu.yaml"), "--json"]
    command += ["--topology", topology, "--compile", "update", f"model.checkpoint=Qwen/Qwen2.5-Coder-{size}-Instruct"]
    done = subprocess.run(command, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr[-3000:]
    (plan,) = json.loads(done.stdout)["plans"]
    memory, update = plan["memory"], plan["programs"]["update"]
    assert plan["total"] <= plan["has"]
    assert update["arguments"] == pytest.approx(memory["weights"] + memory["adapters"] + memory["optimizer"], rel=0.01)
    # Free memory keeps more logits than the formula's 256 MiB, with their exponentials and their gradient.
    logits = 3 * (plan["kept_logits"] - (256 << 20))
    formula = memory["gradients"] + memory["activations"]
    assert 0.5 * formula < update["temporaries"] <= formula + logits


def _lowered(chip: str, case: str, option: str, *overrides: str) -> str:
    """Compile a small program for one chip, or an update for four, and return the program's text."""
    from jaxrl_sql.config import TrainConfig, load_config
    from jaxrl_sql.models import ModelConfig, Norms, Rope
    from jaxrl_sql.parallel import make_mesh
    from jaxrl_sql.planning import programs
    from jaxrl_sql.planning.chips import find_topology
    from jaxrl_sql.planning.lengths import truncated_exponential
    from jaxrl_sql.planning.memory import PlannedModel
    from jaxrl_sql.planning.workload import find_workload, with_packing

    sizes = "grpo.prompts=4 grpo.num_generations=2 sampling.max_new_tokens=32 rollout.max_num_seqs=8 sampling.top_p=0.9"
    devices = find_topology(TOPOLOGY[chip]).devices()
    assert devices is not None
    config = load_config(TrainConfig, SMALL, ["model.dtype=bfloat16", *sizes.split(), *overrides])
    sections = config.workload(60)
    if case == "update":
        model = ModelConfig("qwen3", 512, 128, 1, 4, int(option), 32, 256, Rope(1e4), Norms(), True, True, False, 1024)
        whole = find_workload(config.model, sections, 2)
        work = (with_packing(whole, truncated_exponential(8, 32)) if config.grpo.packing else whole).update
        assert work is not None
        setting = programs.Setting(sections, PlannedModel(config.model, model), make_mesh(1, 2, 2, devices))
        with gpus.fix_cudnn_version():
            return str(programs.lower_update(setting, work).compile().as_text())
    if option == "stacked":
        programs._weights = programs._params
    model = ModelConfig("qwen3", 1280, 128, 3, 4, 2, 64, 256, Rope(1e4), Norms(), True, True, False, 1024)
    load = find_workload(config.model, sections, 1).rollout
    assert load is not None
    mesh = make_mesh(1, 2, 2, devices) if "x" in config.rollout.mesh else make_mesh(1, 1, 1, devices[:1])
    setting = programs.Setting(sections, PlannedModel(config.model, model), mesh).sampling
    return str(programs.lower_decode(setting, load).compile().as_text())


def _sampling_program(chip: str, limits: str) -> str:
    """Compile the sampling of 64 tokens from Qwen2.5's vocabulary, and return the program's text."""
    import jax
    import jax.numpy as jnp

    from jaxrl_sql.models.ops.token_distribution import SamplingMetadata, sample_tokens
    from jaxrl_sql.models.ops.truncation import Truncation
    from jaxrl_sql.parallel import make_mesh
    from jaxrl_sql.planning.chips import find_topology

    devices = find_topology(TOPOLOGY[chip]).devices()
    assert devices is not None
    placed = jax.NamedSharding(make_mesh(1, 1, 1, devices), jax.P())
    host = functools.partial(jax.ShapeDtypeStruct, sharding=placed)
    keys = host((64,), jax.eval_shape(jax.random.key, 0).dtype)
    kinds = (jnp.int32 if name == "top_k" else jnp.float32 for name in SamplingMetadata._fields)
    parameters = SamplingMetadata(*(host((64,), kind) for kind in kinds))
    truncation = Truncation(*(name in limits for name in Truncation._fields))
    sample = jax.jit(functools.partial(sample_tokens, truncation=truncation))
    return str(sample.lower(keys, host(LOGITS, jnp.float32), parameters).compile().as_text())


def _cached_programs(chip: str) -> dict[str, int]:
    """Compile a program for parts of four GPUs; return how many programs the persistent cache has after each."""
    import jax
    import jax.numpy as jnp

    from jaxrl_sql.parallel import make_mesh
    from jaxrl_sql.planning.chips import find_topology

    devices = find_topology(TOPOLOGY[chip]).devices()
    assert devices is not None
    counts = {}
    with tempfile.TemporaryDirectory() as folder, warnings.catch_warnings():
        # An entry that is found cannot be loaded without a GPU, so the program is compiled again.
        warnings.filterwarnings("ignore", "Error reading persistent compilation cache entry", UserWarning)
        jax.config.update("jax_compilation_cache_dir", folder)
        jax.config.update("jax_persistent_cache_min_compile_time_secs", 0)
        for name, part in (("first two GPUs", devices[:2]), ("last two GPUs", devices[2:]), ("one GPU", devices[:1])):
            placed = jax.NamedSharding(make_mesh(1, 1, len(part), part), jax.P("tensor"))
            x = jax.ShapeDtypeStruct((64, 64), jnp.float32, sharding=placed)
            jax.jit(lambda x: jnp.sin(x) @ x).lower(x).compile()
            counts[name] = len(list(Path(folder).glob("*-cache")))
    return counts


def _kernels(text: str, shares: tuple[float, float]) -> tuple[int, int]:
    """Return the kernels that a program runs, and how often they read or write an array of all logits."""
    computations, entry = hlo._computations(text)
    inside = set(re.findall(r"(?:calls|to_apply)=%?([\w.\-]+)", text))
    is_all = re.compile(rf"= \w+\[{LOGITS[0]},{LOGITS[1]}\]").search
    kernels = passes = 0.0
    for name, times in hlo._walk_executions(computations, entry, shares):
        lines = [] if name in inside else computations[name]
        logits = {line.split()[0] for line in lines if is_all(line)}
        for line in lines:
            match = re.search(r" (fusion|custom-call|sort|copy|reduce|reduce-window|scatter|gather)\((.*?)\)", line)
            if match is not None:
                kernels += times
                written = line.partition(match[0])[0].count(f"[{LOGITS[0]},{LOGITS[1]}]")
                passes += times * (written + len(logits & set(re.findall(r"%[\w.\-]+", match[2]))))
    return round(kernels), round(passes)


def _main(chip: str, case: str, option: str, *overrides: str) -> dict[str, Any]:
    if case == "cache":
        return _cached_programs(chip)
    if case == "sample":
        text = _sampling_program(chip, option)
        # Branch 0 of a condition is the one of `False`: some row is not found in the likeliest tokens.
        (kernels, passes), (all_kernels, _) = (_kernels(text, shares) for shares in ((0.0, 1.0), (1.0, 0.0)))
        lengths = [int(length) for length in re.findall(r"\[\d+,(\d+)\][^=\n]*\) sort\(", text)]
        sizes = {"kernels": kernels, "passes": passes, "kernels_of_search": all_kernels - kernels}
        return sizes | {"longest_sort": max(lengths, default=0)}
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
            "branches": [len(branches.split(",")) for branches in re.findall(r"branch_computations=\{([^}]*)\}", text)],
        }
    copied = re.findall(r"bf16\[(?:1,)?(?:128,256|256,128)\][^ ]* (?:copy|slice|dynamic-slice)\(", text)
    kernels = len(re.findall(r'custom_call_target="(?:__gpu\$xla.gpu.triton|tpu_custom_call)"', text))
    # Partial results of each of the 8 blocks of a pool before merging: [Y,K,G,M,Q] in float32.
    heads = 1 if "rollout.mesh=2x2" in overrides else 2
    parts = re.findall(rf"= f32\[8,{heads},\d+,2,64\]", text)
    met = hlo.collectives(text)
    return {
        "met": [(item.kind, item.chips) for item in met],
        "most": max((entry.received for entry in met), default=0.0),
        "kernels": kernels,
        "parts": parts,
        "copies": copied,
        "sorts": re.findall(r"f32\[[\d,]*1280\][^\n]* sort\(", text),
    }


if __name__ == "__main__":
    sys.path.insert(0, str(Path(__file__).resolve().parents[3]))
    sys.stdout.write(json.dumps(_main(*sys.argv[1:])) + "\n")
