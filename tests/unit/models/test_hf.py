"""Hugging Face folders: bit-equal round trips, and one-line errors."""

from __future__ import annotations

import dataclasses
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

from jaxrl_sql.models import ModelConfig, Norms, Rope, init_params, load_checkpoint, load_tokenizer, save_checkpoint
from jaxrl_sql.models.families import FAMILIES
from jaxrl_sql.models.formats.hf import stop_tokens
from jaxrl_sql.models.rope import RopeScaling
from jaxrl_sql.models.spec import SlidingWindow
from jaxrl_sql.models.stacked_layers import split_layers
from jaxrl_sql.types import InputError

SHARDS = "jaxrl_sql.models.formats.hf.SHARD_BYTES"
START = Path(__file__).parents[3] / "configs" / "recipes_start"
QWEN3 = ModelConfig("qwen3", 30, 16, 2, 4, 2, 8, 24, Rope(1e6), Norms(), True, True, False, 64)
QWEN2 = ModelConfig("qwen2", 30, 16, 2, 4, 2, 4, 24, Rope(1e4), Norms(1e-5), False, False, True, 32)
LLAMA = ModelConfig("llama", 30, 16, 2, 4, 2, 8, 24, Rope(5e5), Norms(1e-5), True, False, False, 256)
LLAMA = dataclasses.replace(LLAMA, rope=Rope(5e5, RopeScaling("llama3", 32.0, 1.0, 4.0, 64)))
GEMMA3 = dataclasses.replace(
    ModelConfig("gemma3_text", 30, 16, 3, 4, 1, 8, 24, Rope(1e6), Norms(), True, True, False, 64),
    sliding=SlidingWindow(5, (True, False, True), 1e4),
    activation="gelu_tanh",
    norms=Norms(is_zero_centered=True, has_post_norms=True),
    scale_embeddings=True,
)
CAPPED = dataclasses.replace(
    GEMMA3,
    rope=Rope(1e6, RopeScaling("linear", 8.0)),
    sliding=None,
    query_scalar=24,
    attn_score_cap=50.0,
    final_logit_cap=30.0,
    tie_embeddings=False,
)
CONFIGS = pytest.mark.parametrize(
    "config", [QWEN3, QWEN2, LLAMA, GEMMA3, CAPPED], ids=["qwen3", "qwen2-untied", "llama", "gemma3", "gemma3-capped"]
)


def save_in_shards(shard_bytes: int, *arguments: Any, **options: Any) -> None:
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(SHARDS, shard_bytes)
        save_checkpoint(*arguments, **options)


def make_params(config: ModelConfig, dtype: Any = jnp.float32) -> Any:
    shapes, rng = jax.eval_shape(lambda: init_params(config, jax.random.key(0))), np.random.default_rng(1)
    return jax.tree.map(lambda leaf: jnp.asarray(rng.normal(size=leaf.shape).astype(dtype)), shapes)


def edit_config(folder: Path, **changes: Any) -> None:
    path = folder / "config.json"
    fields = json.loads(path.read_text()) | changes
    path.write_text(json.dumps({name: value for name, value in fields.items() if value != "absent"}))


@pytest.mark.parametrize("umask", [0o022, 0o027])
def test_file_permissions_follow_the_umask(tmp_path: Path, umask: int) -> None:
    before = os.umask(umask)
    try:
        for shard_bytes in (1 << 30, 4096, 1 << 30):  # the last one overwrites the previous files
            save_in_shards(shard_bytes, tmp_path, QWEN3, make_params(QWEN3), None)
            result = {path.name: path.stat().st_mode & 0o777 for path in tmp_path.iterdir()}
            assert any(name.endswith(".safetensors") for name in result)
            assert set(result.values()) == {0o666 & ~umask}, result
    finally:
        os.umask(before)


@CONFIGS
@pytest.mark.parametrize("dtype", ["float32", "bfloat16"])
@pytest.mark.parametrize("shard_bytes", [1 << 30, 2000])
def test_round_trip_is_bit_equal(tmp_path: Path, config: ModelConfig, dtype: str, shard_bytes: int) -> None:
    params = make_params(config, dtype)
    save_in_shards(shard_bytes, tmp_path, config, params, dtype=dtype)
    again_config, again = load_checkpoint(tmp_path, dtype=dtype)
    assert again_config == config
    assert jax.tree.structure(again) == jax.tree.structure(params)
    jax.tree.map(np.testing.assert_array_equal, again, params)
    assert {leaf.dtype for leaf in jax.tree.leaves(again)} == {jnp.dtype(dtype)}
    assert (tmp_path / "model.safetensors.index.json").is_file() == (shard_bytes == 2000)
    _, apart = load_checkpoint(tmp_path, dtype=dtype, by_layer=True)
    jax.tree.map(np.testing.assert_array_equal, apart, split_layers(params))


@CONFIGS
@pytest.mark.parametrize("dtype", ["float32", pytest.param("bfloat16", marks=pytest.mark.nightly)])
def test_loading_and_saving_keeps_the_bytes(tmp_path: Path, config: ModelConfig, dtype: str) -> None:
    save_in_shards(3000, tmp_path / "source", config, make_params(config, dtype), dtype=dtype)
    for read_as in {dtype, "float32"}:  # float32 represents every bfloat16
        out = tmp_path / read_as
        save_in_shards(1 << 30, out, *load_checkpoint(tmp_path / "source", read_as), dtype=dtype)
        source, again = (
            {
                name: tensor.tobytes()
                for file in folder.glob("*.safetensors")
                for name, tensor in load_file(file).items()
            }
            for folder in (tmp_path / "source", out)
        )
        assert len(source) >= 20
        assert again == source
        assert load_checkpoint(out, dtype)[0] == config


def test_generation_config_is_saved_with_the_model(tmp_path: Path) -> None:
    authors = {"eos_token_id": [7, 9], "temperature": 0.7, "do_sample": True, "transformers_version": "4.1"}
    save_checkpoint(tmp_path / "source", QWEN3, make_params(QWEN3))
    (tmp_path / "source" / "generation_config.json").write_text(json.dumps(authors))
    save_checkpoint(tmp_path / "with", QWEN3, make_params(QWEN3), source=tmp_path / "source")
    save_checkpoint(tmp_path / "without", QWEN3, make_params(QWEN3))
    with_, without = (
        json.loads((tmp_path / name / "generation_config.json").read_text()) for name in ("with", "without")
    )
    assert with_ == {"eos_token_id": [7, 9], "temperature": 0.7, "do_sample": True}
    assert without == {"do_sample": False}
    # The end tokens of a trained model are written once.
    for source, ends, output in (
        ("source", [9, 3], [7, 9, 3]),
        ("source", [7], [7, 9]),
        (None, [3], 3),
        (None, [3, 5], [3, 5]),
    ):
        save_checkpoint(tmp_path / "ends", QWEN3, make_params(QWEN3), source=source and tmp_path / source, ends=ends)
        assert json.loads((tmp_path / "ends" / "generation_config.json").read_text())["eos_token_id"] == output
    # In place: the old files are removed before the new ones are written.
    save_checkpoint(tmp_path / "source", QWEN3, make_params(QWEN3), source=tmp_path / "source")
    assert json.loads((tmp_path / "source" / "generation_config.json").read_text()) == with_


@pytest.mark.parametrize(
    ("config", "generation", "ends"),
    [
        ({}, None, []),
        ({"eos_token_id": 7}, None, [7]),
        ({"eos_token_id": [7, 9]}, {"eos_token_id": 3}, [3, 7, 9]),
        ({"eos_token_id": None, "text_config": {"eos_token_id": 4}}, {"eos_token_id": [4, 5]}, [4, 5]),
        ({"eos_token_id": -1}, {}, []),
    ],
)
def test_end_tokens_are_the_union_over_files(
    config: dict[str, Any], generation: dict[str, Any] | None, ends: list[int], tmp_path: Path
) -> None:
    save_checkpoint(tmp_path, QWEN3, make_params(QWEN3))
    (tmp_path / "generation_config.json").unlink()
    for name, fields in (("config.json", config), ("generation_config.json", generation)):
        before = json.loads((tmp_path / name).read_text()) if (tmp_path / name).is_file() else {}
        if fields is not None:
            (tmp_path / name).write_text(json.dumps(before | fields))
    assert stop_tokens(tmp_path) == ends
    save_checkpoint(tmp_path / "again", QWEN3, make_params(QWEN3), source=tmp_path)
    assert stop_tokens(tmp_path / "again") == ends
    assert _ids(json.loads((tmp_path / "again" / "generation_config.json").read_text()).get("eos_token_id", [])) == ends


def _ids(ends: int | list[int]) -> list[int]:
    return [ends] if isinstance(ends, int) else ends


def test_invalid_end_token_id_is_rejected(tmp_path: Path) -> None:
    for ends in ("</s>", [1, None], True):
        (tmp_path / "generation_config.json").write_text(json.dumps({"eos_token_id": ends}))
        with pytest.raises(InputError, match=r"eos_token_id is .*: a token id or a list of them is expected"):
            stop_tokens(tmp_path)


def test_linear_weight_is_stored_as_out_by_in(tmp_path: Path) -> None:
    params = make_params(QWEN3)
    save_checkpoint(tmp_path, QWEN3, params)
    tensors = load_file(tmp_path / "model.safetensors")
    assert tensors["model.layers.1.self_attn.q_proj.weight"].shape == (32, 16)
    # Row 8·head + offset of the file is [:, head, offset] of our array.
    row = tensors["model.layers.1.self_attn.q_proj.weight"][8 * 2 + 3]
    np.testing.assert_array_equal(row, params["layers"]["q"][1, :, 2, 3])
    column = tensors["model.layers.0.self_attn.o_proj.weight"][:, 8 * 3 + 1]
    np.testing.assert_array_equal(column, params["layers"]["o"][0, 3, 1])
    assert "lm_head.weight" not in tensors


def test_second_save_replaces_the_first(tmp_path: Path) -> None:
    save_in_shards(2000, tmp_path, QWEN3, make_params(QWEN3))
    zeros = jax.tree.map(jnp.zeros_like, make_params(QWEN3))
    save_checkpoint(tmp_path, QWEN3, zeros)
    assert sorted(p.name for p in tmp_path.iterdir()) == ["config.json", "generation_config.json", "model.safetensors"]
    assert not any(leaf.any() for leaf in jax.tree.leaves(load_checkpoint(tmp_path)[1]))


def test_all_tensor_errors_are_reported_in_one_line(tmp_path: Path) -> None:
    save_checkpoint(tmp_path, QWEN3, make_params(QWEN3))
    tensors = load_file(tmp_path / "model.safetensors")
    del tensors["model.norm.weight"]
    tensors["model.extra"] = np.zeros(3, np.float32)
    tensors["model.layers.0.mlp.up_proj.weight"] = np.zeros((5, 7), np.float32)
    save_file(tensors, tmp_path / "model.safetensors")
    with pytest.raises(InputError) as caught:
        load_checkpoint(tmp_path)
    message = str(caught.value)
    for part in (
        "1 missing (model.norm.weight)",
        "1 unknown (model.extra)",
        "up_proj.weight [5, 7], expected [24, 16]",
    ):
        assert part in message
    assert "\n" not in message


def test_weights_of_another_model_than_the_config_fail_in_one_line(tmp_path: Path) -> None:
    save_checkpoint(tmp_path / "a", QWEN3, make_params(QWEN3))
    save_checkpoint(tmp_path / "b", QWEN2, make_params(QWEN2))
    (tmp_path / "a" / "model.safetensors").write_bytes((tmp_path / "b" / "model.safetensors").read_bytes())
    with pytest.raises(InputError, match=r"4 missing .*6 unknown .*and 1 more\); 8 misshapen") as caught:
        load_checkpoint(tmp_path / "a")
    assert "\n" not in str(caught.value)


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"model_type": "mamba"}, r"model_type is 'mamba'; valid are gemma3_text, llama, qwen2, qwen3"),
        ({"model_type": "absent"}, r"model_type is None; valid are"),
        ({"hidden_size": "absent"}, "hidden_size is missing"),
        ({"hidden_size": "16"}, "hidden_size is '16', must be a number"),
        ({"hidden_size": 16.5}, "hidden_size is 16.5, must be a whole number of at least 1"),
        ({"num_attention_heads": 0}, "num_attention_heads is 0, must be a whole number of at least 1"),
        ({"num_key_value_heads": 2.5}, "num_key_value_heads is 2.5, must be a whole number"),
        ({"head_dim": True}, "head_dim is True, must be a number"),
        ({"rms_norm_eps": "1e-6"}, "rms_norm_eps is '1e-6', must be a number"),
        ({"hidden_act": "gelu"}, "hidden_act is 'gelu'"),
        ({"attention_bias": True}, "attention_bias is True"),
        ({"rope_scaling": {"type": "yarn", "factor": 4.0}}, "rope_scaling of type 'yarn'"),
        ({"rope_parameters": {"rope_type": "llama3", "rope_theta": 1.0}}, "rope_parameters of type 'llama3'"),
        ({"layer_types": ["full_attention", "sliding_attention"]}, "layer_types has 'sliding_attention'"),
        ({"use_sliding_window": True}, "use_sliding_window is True"),
    ],
)
def test_unsupported_config_field_is_named(tmp_path: Path, changes: Any, message: str) -> None:
    save_checkpoint(tmp_path, QWEN3, make_params(QWEN3))
    edit_config(tmp_path, **changes)
    with pytest.raises(InputError, match=message):
        load_checkpoint(tmp_path)


@pytest.mark.parametrize("changes", [{"rope_parameters": "absent"}, {"rope_theta": "absent"}])
def test_rotary_base_is_read_from_either_field(tmp_path: Path, changes: Any) -> None:
    save_checkpoint(tmp_path, QWEN3, make_params(QWEN3))
    edit_config(tmp_path, **changes)
    assert load_checkpoint(tmp_path)[0].rope.theta == QWEN3.rope.theta == 1e6


def test_missing_and_broken_files_are_named(tmp_path: Path) -> None:
    with pytest.raises(InputError, match="no such folder or file"):
        load_checkpoint(tmp_path / "nowhere")
    with pytest.raises(InputError, match=r"no config\.json"):
        load_checkpoint(tmp_path)
    save_in_shards(2000, tmp_path, QWEN3, make_params(QWEN3))
    shard = next(iter(sorted(tmp_path.glob("model-0*"))))
    whole = shard.read_bytes()
    shard.write_bytes(whole[:50])
    with pytest.raises(InputError, match=r"model-00001-of-.*not a readable safetensors"):
        load_checkpoint(tmp_path)
    shard.unlink()
    with pytest.raises(InputError, match=r"no model-00001-of-"):
        load_checkpoint(tmp_path)
    (tmp_path / "config.json").write_text("{")
    with pytest.raises(InputError, match=r"config.json: not JSON"):
        load_checkpoint(tmp_path)


@pytest.mark.parametrize("index", [[], {"a": 3}, "model.safetensors", None])
def test_invalid_index_is_rejected(tmp_path: Path, index: Any) -> None:
    save_checkpoint(tmp_path, QWEN3, make_params(QWEN3))
    (tmp_path / "model.safetensors.index.json").write_text(json.dumps({"weight_map": index}))
    with pytest.raises(InputError, match=r"index.json: weight_map must name the file of each tensor: copy or fetch it"):
        load_checkpoint(tmp_path)


def test_unsupported_dtype_and_family_are_rejected(tmp_path: Path) -> None:
    with pytest.raises(InputError, match=r"dtype: 'float8' .*valid are float32, bfloat16"):
        save_checkpoint(tmp_path, QWEN3, make_params(QWEN3), dtype="float8")
    with pytest.raises(InputError, match=r"family is 'mamba'; valid are gemma3_text, llama, qwen2, qwen3"):
        save_checkpoint(tmp_path, dataclasses.replace(QWEN3, family="mamba"), {})
    with pytest.raises(InputError, match=r"family qwen3 has qkv_bias = False, not True"):
        save_checkpoint(tmp_path, dataclasses.replace(QWEN3, qkv_bias=True), {})
    with pytest.raises(InputError, match=r"family qwen2 has head_dim = 4, not 8"):
        save_checkpoint(tmp_path, dataclasses.replace(QWEN2, head_dim=8), {})
    with pytest.raises(InputError, match=r"family llama has sliding = None, not SlidingWindow"):
        save_checkpoint(tmp_path, dataclasses.replace(LLAMA, sliding=SlidingWindow(4, (True, False), 1e4)), {})
    with pytest.raises(InputError, match=r"family llama has norms\.is_zero_centered = False, not True"):
        save_checkpoint(tmp_path, dataclasses.replace(LLAMA, norms=Norms(1e-5, is_zero_centered=True)), {})
    with pytest.raises(InputError, match=r"rope_parameters of type 'llama3' is not supported; valid: 'default'"):
        save_checkpoint(tmp_path, dataclasses.replace(QWEN3, rope=LLAMA.rope), {})
    assert not list(tmp_path.iterdir())


@CONFIGS
def test_configs_round_trip(config: ModelConfig) -> None:
    family = FAMILIES[config.family]
    assert family.read(family.write(config)) == config


def test_tokenizer_is_saved_with_the_checkpoint(tmp_path: Path) -> None:
    from tokenizers import Tokenizer, models, pre_tokenizers
    from transformers import PreTrainedTokenizerFast

    vocabulary = {word: i for i, word in enumerate(["<eos>", "<pad>", "select", "from"])}
    raw = Tokenizer(models.WordLevel(vocabulary, unk_token="<eos>"))  # noqa: S106
    raw.pre_tokenizer = pre_tokenizers.Whitespace()
    tokenizer = PreTrainedTokenizerFast(tokenizer_object=raw, eos_token="<eos>", pad_token="<pad>")  # noqa: S106
    save_checkpoint(tmp_path, QWEN3, make_params(QWEN3), tokenizer)
    again = load_tokenizer(tmp_path)
    assert again("select from")["input_ids"] == [2, 3]
    assert again.eos_token_id == 0
    assert json.loads((tmp_path / "generation_config.json").read_text())["eos_token_id"] == 0
    assert load_checkpoint(tmp_path)[0] == QWEN3


@pytest.mark.parametrize(
    "named",
    [
        pytest.param("TokenizersBackend", marks=pytest.mark.nightly),
        pytest.param("PreTrainedTokenizerFast", marks=pytest.mark.slow),
        pytest.param("Qwen2TokenizerFast", marks=pytest.mark.nightly),
        pytest.param(None, marks=pytest.mark.nightly),
    ],
)
def test_tokenizer_is_loaded_without_a_class_look_up(tmp_path: Path, named: str | None) -> None:
    """The class look-up of transformers imports torch if it is installed, which takes seconds per command."""
    for name in ("config.json", "tokenizer.json", "tokenizer_config.json"):
        (tmp_path / name).write_bytes((START / name).read_bytes())
    fields = json.loads((START / "tokenizer_config.json").read_text())
    if named is None:
        fields.pop("tokenizer_class")
    else:
        fields["tokenizer_class"] = named
    (tmp_path / "tokenizer_config.json").write_text(json.dumps(fields))
    code = (
        f"import sys; from jaxrl_sql.models import load_tokenizer; made = load_tokenizer({str(tmp_path)!r}); "
        "asks = 'transformers.models.auto.tokenization_auto' in sys.modules; from tokenizers import Tokenizer; "
        f"other = Tokenizer.from_file({str(tmp_path / 'tokenizer.json')!r}); text = ' SELECT é\\n<|im_end|> ship'; "
        "print(asks, made.encode(text) == other.encode(text).ids, made.get_vocab() == other.get_vocab())"
    )
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert done.stdout.strip().splitlines()[-1] == "False True True"


def test_folder_without_a_tokenizer_is_rejected_in_one_line(tmp_path: Path) -> None:
    for folder in (tmp_path, tmp_path / "nowhere"):
        with pytest.raises(InputError, match="tokenizer: ") as caught:
            load_tokenizer(folder)
        assert "\n" not in str(caught.value)


def test_tokenizer_config_alone_names_the_missing_file(tmp_path: Path) -> None:
    (tmp_path / "tokenizer_config.json").write_bytes((START / "tokenizer_config.json").read_bytes())
    with pytest.raises(
        InputError, match=r"has no tokenizer\.json: copy it from where .* is, or name data\.tokenizer\.path$"
    ):
        load_tokenizer(tmp_path)
    (tmp_path / "tokenizer.json").write_text("{}")
    with pytest.raises(InputError, match=r"cannot be loaded \(.*[^: ]\)$") as caught:
        load_tokenizer(tmp_path)
    assert "\n" not in str(caught.value)
