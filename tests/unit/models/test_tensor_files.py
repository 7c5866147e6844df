"""Tensors read by rows from safetensors files: memory use, conversion of dtypes, and invalid files."""

from __future__ import annotations

import errno
import json
import os
import subprocess
import sys
from pathlib import Path
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from safetensors.numpy import load_file, save_file

from jaxrl_sql.models import ModelConfig, Norms, Rope, init_params, load_checkpoint, save_checkpoint
from jaxrl_sql.models.formats.hf import read_tensors
from jaxrl_sql.models.formats.load_sharded import load_leaf, reading_threads
from jaxrl_sql.models.formats.tensor_files import (
    Encoding,
    StoredTensor,
    is_sound,
    read_safetensors,
    write_safetensors,
)
from jaxrl_sql.models.spec import Init, ParamSpec
from jaxrl_sql.types import InputError

TINY = ModelConfig("qwen3", 30, 16, 2, 4, 2, 8, 24, Rope(1e6), Norms(), True, True, False, 64)


def stored(path: Path, name: str) -> StoredTensor:
    return read_safetensors(path, os.open(path, os.O_RDONLY))[name]


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    save_checkpoint(tmp_path, TINY, init_params(TINY, jax.random.key(0)))
    return tmp_path


def rewrite(folder: Path, dtype: Any) -> dict[str, np.ndarray]:
    tensors = {name: tensor.astype(dtype) for name, tensor in load_file(folder / "model.safetensors").items()}
    save_file(tensors, folder / "model.safetensors")
    return tensors


@pytest.mark.parametrize("stored_dtype", [jnp.bfloat16, np.float16, np.float32, np.float64])
@pytest.mark.parametrize("dtype", ["float32", "bfloat16"])
def test_file_of_any_dtype_is_rounded_once_to_the_requested_dtype(folder: Path, stored_dtype: Any, dtype: str) -> None:
    tensors = rewrite(folder, stored_dtype)
    _, params = load_checkpoint(folder, dtype)
    down = tensors["model.layers.1.mlp.down_proj.weight"]
    np.testing.assert_array_equal(params["layers"]["down"][1], down.astype(dtype).T)
    np.testing.assert_array_equal(params["embed"], tensors["model.embed_tokens.weight"].astype(dtype))
    assert params["final_norm"].dtype == jnp.dtype(dtype)


def test_bfloat16_read_as_float32_keeps_every_value(tmp_path: Path) -> None:
    bits = np.arange(1 << 16, dtype=np.uint16).reshape(2, -1)  # includes infinities and NaN
    save_file({"w": bits.view(jnp.bfloat16)}, tmp_path / "f.safetensors")
    spec = ParamSpec(("w",), bits.shape, ("vocab", "width"), Init(0.0, 0.0), "w", bits.shape)
    here = jax.sharding.SingleDeviceSharding(jax.devices()[0])
    with reading_threads() as threads:
        leaf = load_leaf(spec, [stored(tmp_path / "f.safetensors", "w")], np.dtype(np.float32), here, threads)
    np.testing.assert_array_equal(leaf, bits.view(jnp.bfloat16).astype(np.float32))


def test_cpu_array_shares_the_read_buffer(folder: Path) -> None:
    # XLA holds a copied array twice during the copy; the alignment that avoids the copy is internal to XLA.
    _, params = load_checkpoint(folder)
    aligned = [leaf.unsafe_buffer_pointer() % 64 for leaf in jax.tree.leaves(params)]
    assert not any(aligned)


def test_rows_are_read_in_the_order_of_the_format(tmp_path: Path) -> None:
    tensor = np.arange(12, dtype=np.float32).reshape(6, 2)
    order = np.array([0, 2, 1, 3, 4, 5])
    save_file({"w": tensor[order]}, tmp_path / "f.safetensors")
    result = stored(tmp_path / "f.safetensors", "w")
    again = StoredTensor(result.path, result.file, result.offset, result.shape, result.encoding, np.argsort(order))
    np.testing.assert_array_equal(again.read(1, 4), tensor[1:4])


def header_of(folder: Path) -> tuple[dict[str, Any], bytes]:
    raw = (folder / "model.safetensors").read_bytes()
    length = int.from_bytes(raw[:8], "little")
    return json.loads(raw[8 : 8 + length]), raw[8 + length :]


def put_header(folder: Path, header: dict[str, Any], data: bytes) -> None:
    raw = json.dumps(header).encode()
    (folder / "model.safetensors").write_bytes(len(raw).to_bytes(8, "little") + raw + data)


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"data_offsets": [0, 8]}, r"8 bytes for \[16\] of F32"),
        ({"data_offsets": [1 << 40, (1 << 40) + 64]}, "bytes 1099511627776 to"),
        ({"data_offsets": None}, "not a readable safetensors file"),
        ({"dtype": "F8_E4M3"}, r"1 of an unsupported type \(model.norm.weight F8_E4M3\)"),
    ],
)
def test_inconsistent_header_is_rejected(folder: Path, changes: dict[str, Any], message: str) -> None:
    header, data = header_of(folder)
    header["model.norm.weight"] |= changes
    put_header(folder, header, data)
    with pytest.raises(InputError, match=message):
        load_checkpoint(folder)


def test_invalid_file_is_rejected(folder: Path) -> None:
    for raw in (b"", b"1234567", b"\xff" * 100, (5).to_bytes(8, "little") + b"[1,2]"):
        (folder / "model.safetensors").write_bytes(raw)
        with pytest.raises(InputError, match=r"model.safetensors: not a readable safetensors file") as caught:
            load_checkpoint(folder)
        assert "\n" not in str(caught.value)


def test_file_truncated_after_opening_is_an_error(tmp_path: Path) -> None:
    save_file({"w": np.ones((4, 4), np.float32)}, tmp_path / "f.safetensors")
    result = stored(tmp_path / "f.safetensors", "w")
    with (tmp_path / "f.safetensors").open("r+b") as file:
        file.truncate(result.offset + 20)
    with pytest.raises(InputError, match="ends in the middle of a tensor"):
        result.read(0, 4)
    assert Encoding("F32", 16, np.dtype(np.float32)) == result.encoding


# Four layers of 16 MiB and an embedding of 48 MiB, so that no leaf dominates; on four devices.
MEASURE = r"""
import re, sys
import jax, numpy as np
from jaxrl_sql.models import ModelConfig, Norms, Rope, count_params, init_params, load_checkpoint, save_checkpoint
from jaxrl_sql.parallel.mesh import make_mesh

config = ModelConfig("qwen3", 12288, 1024, 4, 8, 2, 64, 1024, Rope(1e6), Norms(), True, True, False, 64)
folder, what = sys.argv[1:]
def peak():  # of this program; getrusage's begins with what the caller had when it forked
    return 1024 * int(re.search(r"VmHWM:\s+(\d+) kB", open("/proc/self/status").read())[1])

if what == "write":
    save_checkpoint(folder, config, init_params(config, jax.random.key(0)), dtype="bfloat16", shard_bytes=20 << 20)
else:
    mesh = make_mesh(1, 2, 2) if what == "mesh" else None
    jax.device_put(np.ones(1)).block_until_ready()
    before = peak()
    config, params = load_checkpoint(folder, "float32", mesh)
    if what == "save":
        jax.tree.map(lambda leaf: np.asarray(leaf[0]), params["layers"])  # compiles how a layer is taken
        open("/proc/self/clear_refs", "w").write("5")  # the peak is forgotten
        before = peak()
        save_checkpoint(folder + "/again", config, params, shard_bytes=20 << 20)
    print(peak() - before, 4 * count_params(config))
"""


def measure(folder: Path, what: str) -> list[int]:
    """Run the script above in a new process, whose peak memory is its own."""
    env = {
        "JAX_PLATFORMS": "cpu",
        "XLA_FLAGS": "--xla_force_host_platform_device_count=4",
        "PYTHONPATH": os.pathsep.join(entry for entry in sys.path if entry),
    }
    command = [sys.executable, "-c", MEASURE, str(folder), what]
    done = subprocess.run(command, capture_output=True, text=True, env=env, check=False)
    assert done.returncode == 0, done.stderr[-2000:]
    return [int(word) for word in done.stdout.split()]


@pytest.fixture(scope="module")
def large_folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("large")
    measure(folder, "write")
    assert len(list(folder.glob("model-*.safetensors"))) > 2
    return folder


@pytest.mark.nightly
@pytest.mark.parametrize("what", ["one", "mesh"])
def test_loading_holds_the_model_once(large_folder: Path, what: str) -> None:
    grown, model = measure(large_folder, what)
    assert model > 100 << 20
    # Replicated weights are on several devices, which share memory on the CPU.
    assert grown < 1.25 * model, f"{grown / model:.2f} times the model's bytes"
    assert grown > 0.8 * model, "the measurement does not see the model"


@pytest.mark.nightly
def test_saving_holds_one_file_of_the_model(large_folder: Path) -> None:
    grown, model = measure(large_folder, "save")
    assert len(list((large_folder / "again").glob("model-*.safetensors"))) > 3
    # In one file it would be half the model: the transposed tensors. The embedding is written without a copy.
    assert grown < 0.4 * model, f"{grown / model:.2f} times the model's bytes"


def test_weights_are_valid_below_a_large_limit() -> None:
    for dtype, limit in ((jnp.bfloat16, float(jnp.bfloat16(1e15))), (np.float16, np.inf)):
        every = np.arange(1 << 16, dtype=np.uint16).view(dtype)
        sound = np.abs(every.astype(np.float32)) < limit  # False for NaN
        assert is_sound(every[sound])
        assert [is_sound(number) for number in every[:, None]] == sound.tolist()
    broken = (np.nan, -np.nan, np.inf, -np.inf, 2e15, -2e15)
    for kind in (np.float32, np.float64):
        assert is_sound(np.array([[0.0, -0.0, 9e14], [np.inf, 1e-38, -9e14]], kind)[:, 1:][:1])
        assert not any(is_sound(np.array([[1.0, number]], kind)) for number in broken)


@pytest.mark.parametrize("value", [np.nan, np.inf, -np.inf, 1e30])
@pytest.mark.parametrize(
    "name", ["model.norm.weight", "model.embed_tokens.weight", "model.layers.1.mlp.down_proj.weight"]
)
def test_invalid_weights_are_rejected_by_name(folder: Path, name: str, value: float) -> None:
    tensors = rewrite(folder, np.float32)
    tensors[name][..., -1] = value
    save_file(tensors, folder / "model.safetensors")
    says = f"{folder}: the weights are broken: NaN, infinity or numbers beyond 1e+15 in {name}; copy or fetch the model"
    for dtype, by_layer in (("float32", False), ("bfloat16", True)):
        with pytest.raises(InputError) as refused:
            load_checkpoint(folder, dtype, by_layer=by_layer)
        assert str(refused.value).startswith(says)
    with pytest.raises(InputError) as refused:
        list(read_tensors(folder))
    assert str(refused.value).startswith(says)


def test_invalid_weights_are_counted_and_not_written(folder: Path) -> None:
    config, params = load_checkpoint(folder)
    params["layers"]["gate"] = params["layers"]["gate"].at[:, 0, 0].set(jnp.nan)
    with pytest.raises(InputError, match=r"^export to bfloat16: .* in model.layers.0.mlp.gate_proj.weight; "):
        save_checkpoint(folder / "out", config, params, dtype="bfloat16")
    tensors = rewrite(folder, np.float32)
    for layer in (0, 1):
        tensors[f"model.layers.{layer}.mlp.gate_proj.weight"][3] = np.nan
    save_file(tensors, folder / "model.safetensors")
    with pytest.raises(InputError, match=r" in model.layers.0.mlp.gate_proj.weight and 1 more; "):
        load_checkpoint(folder)


def test_a_full_disk_is_an_error_of_the_file_without_a_partial_file(full_disk: Path) -> None:
    path = full_disk / "model.safetensors"
    with pytest.raises(OSError, match="No space left on device") as raised:
        write_safetensors(path, {"x": np.zeros(1 << 16, np.float32)})
    assert (raised.value.errno, raised.value.filename) == (errno.ENOSPC, str(path))
    assert [entry.name for entry in full_disk.iterdir()] == ["ballast"]
