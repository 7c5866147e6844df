"""The update with cuDNN's attention compiles for four GPUs on a machine that has none, where JAX's CUDA plugin is.

Run as a test it starts itself as a script: the plugin stays in the process that has loaded it.
"""

from __future__ import annotations

import importlib.util
import os
import re
import subprocess
import sys
from pathlib import Path

import pytest

pytestmark = pytest.mark.slow

# What XLA asks of a GPU before it compiles for one: here the H100 SXM, from NVIDIA's data sheet, the CUDA guide's table
# of compute capability 9.0, and the dtypes by XLA's numbers (10 half, 11 float, 12 double, 16 bfloat16).
VECTOR_UNITS = {10: (128, 2), 11: (128, 1), 12: (64, 1), 16: (128, 2)}
MATRIX_UNITS = {10: (4, 512), 11: (4, 256), 12: (4, 32), 16: (4, 512)}
H100 = {
    "name": "H100 SXM 80 GB",
    "device_vendor": "NVIDIA Corporation",
    "platform_version": "Compute Capability 9.0a",
    "driver_version": "13.0.0",
    "runtime_version": "12.9.0",
    "compile_time_toolkit_version": "12.9.0",
    "dnn_version": "9.10.0",
    "core_count": 132,
    "fpus_per_core": 128,
    "clock_rate_ghz": 1.98,
    "device_memory_size": 80 * 10**9,
    "memory_bandwidth": 3350 * 10**9,
    "l2_cache_size": 50 << 20,
    "pcie_bandwidth": 32 << 30,
    "device_address_bits": 64,
    "ecc_enabled": True,
    "threads_per_warp": 32,
    "threads_per_block_limit": 1024,
    "threads_per_core_limit": 2048,
    "thread_dim_limit_x": 1024,
    "thread_dim_limit_y": 1024,
    "thread_dim_limit_z": 64,
    "block_dim_limit_x": 2**31 - 1,
    "block_dim_limit_y": 2**16 - 1,
    "block_dim_limit_z": 2**16 - 1,
    "registers_per_core_limit": 65536,
    "registers_per_block_limit": 65536,
    "shared_memory_per_core": 228 << 10,
    "shared_memory_per_block": 48 << 10,
    "shared_memory_per_block_optin": 227 << 10,
}
CUDNN = (9, 10)


@pytest.mark.skipif(importlib.util.find_spec("jax_cuda12_plugin") is None, reason="no plugin: the extra gpu-plan")
@pytest.mark.parametrize("key_heads", ["2", "1"], ids=["heads-split", "key-heads-repeated"])
def test_the_update_compiles_for_four_gpus_with_heads_split(key_heads: str) -> None:
    env = os.environ | {"JAX_PLATFORMS": "cpu"}
    env["PYTHONPATH"] = os.pathsep.join(entry for entry in sys.path if entry)
    done = subprocess.run([sys.executable, __file__, key_heads], capture_output=True, text=True, env=env, check=False)
    assert done.returncode == 0, done.stderr[-3000:]
    forward, backward = map(int, done.stdout.split()[-2:])
    assert (forward, backward) == (2, 2), "of prompts and of completions a kernel each way"


def _target() -> str:
    """Return the H100 as XLA's GpuTargetConfigProto in text."""
    fields = [
        f"{name}: {str(value).lower() if isinstance(value, bool) else repr(value)}".replace("'", '"')
        for name, value in H100.items()
    ]
    fields.append("cuda_compute_capability { major: 9 feature_extension: ACCELERATED_FEATURES }")
    fields.append("device_interconnect_info { active_links: 18 }")
    for unit, rates in (("scalar", VECTOR_UNITS), ("matrix", MATRIX_UNITS)):
        of_each = (
            f"rate_infos {{ key: {key} value {{ clock_rate_ghz: 1.98 units_per_core: {units} ops_per_clock: {ops} }} }}"
            for key, (units, ops) in rates.items()
        )
        fields.append(f"{unit}_unit_description {{ {' '.join(of_each)} }}")
    described = f'device_description_str: "{H100["name"]}"'
    cudnn = f"dnn_version_info {{ major: {CUDNN[0]} minor: {CUDNN[1]} }}"
    return f'gpu_device_info {{ {" ".join(fields)} }} platform_name: "CUDA" {cudnn} {described}'


def _compile(key_heads: int) -> tuple[int, int]:
    """Compile an update for 1x2x2 GPUs and return how many kernels of attention it has, forward and backward."""
    from jax._src.cudnn import fused_attention_stablehlo
    from jax.experimental import topologies

    from jaxrl_sql.config import load_config
    from jaxrl_sql.models import ModelConfig
    from jaxrl_sql.models.attention import cudnn
    from jaxrl_sql.parallel import make_mesh
    from jaxrl_sql.planning import programs
    from jaxrl_sql.planning.workload import find_workload

    # Both ask the machine that they run on, which has neither GPU nor library.
    fused_attention_stablehlo.check_cudnn_version = lambda: CUDNN[0] * 10_000 + CUDNN[1] * 100
    programs.for_platform = lambda *_: cudnn.attend_tree
    devices = topologies.get_topology_desc(platform="cuda", target_config=_target(), topology="1x1x4").devices
    config = load_config(
        None, ["model.dtype=bfloat16", "grpo.prompts=4", "grpo.num_generations=2", "sampling.max_new_tokens=32"]
    )
    model = ModelConfig("qwen3", 512, 128, 1, 4, key_heads, 32, 256, 1e4, 1e-6, True, True, False, 1024)
    update = find_workload(config, 60, 2).update
    assert update is not None
    lowered = programs.lower_update(programs.Setting(config, model, make_mesh(1, 2, 2, devices)), update)
    text = lowered.compile().as_text()
    kernels = re.findall(r'custom_call_target="__cudnn\$fmha(\w+)"', text)
    backward = sum(name.endswith("Backward") for name in kernels)
    return len(kernels) - backward, backward


if __name__ == "__main__":
    sys.path.insert(0, str(Path(__file__).resolve().parents[3]))
    print(*_compile(int(sys.argv[1])))
