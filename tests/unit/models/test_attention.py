"""Fused attention backends equal plain attention in values, gradients and updates; invalid choices are rejected."""

from __future__ import annotations

import dataclasses
import functools
import math
import re
from collections.abc import Callable, Sequence
from functools import partial
from types import ModuleType
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from jaxrl_sql.algo.loss import grpo_loss
from jaxrl_sql.batch import GroupBatch, Segment
from jaxrl_sql.config import ClipConfig, GrpoConfig, KlConfig, LossConfig
from jaxrl_sql.models import ModelConfig, Norms, Rope, init_params
from jaxrl_sql.models.attention import BACKENDS, amx, choose, cudnn, for_platform, splash, xla
from jaxrl_sql.models.attention.tree import AttentionWindow, TreeLevel
from jaxrl_sql.models.ops import cpu
from jaxrl_sql.models.policy import make_policy
from jaxrl_sql.models.spec import SlidingWindow
from jaxrl_sql.types import InputError

CONFIG = ModelConfig("qwen2", 64, 32, 2, 4, 2, 8, 48, Rope(1e4), Norms(), True, False, True, 512)
SLIDING = dataclasses.replace(CONFIG, sliding=SlidingWindow(5, (True, False), 100.0))
CAPPED = dataclasses.replace(CONFIG, attn_score_cap=3.0)
jit = partial(jax.jit, compiler_options={"xla_backend_optimization_level": 0})


@pytest.fixture(scope="module")
def here(plain_kernel: ModuleType) -> dict[str, Callable[..., Any]]:
    """Return the backends with the packing and masks of their platforms, computed on this machine."""
    kernel = cudnn.Kernel(plain_kernel.forward, plain_kernel.backward)
    return {
        "splash": partial(splash.attend_tree, interpret=True),
        "cudnn": partial(cudnn.attend_tree, kernel=kernel),
        "amx": amx.attend_tree,
    }


def make_levels(
    sizes: Sequence[tuple[int, int]], lengths: Sequence[Any], heads: int, kv_heads: int, size: int = 8
) -> tuple[TreeLevel, ...]:
    """Draw levels of (rows, tokens) with lengths [B,R] each; positions continue through the tree."""
    rng = np.random.default_rng(0)
    levels: list[TreeLevel] = []
    starts = np.zeros((len(lengths[0]), 1), np.int32)
    for (rows, t), arguments in zip(sizes, lengths, strict=True):
        length = np.asarray(arguments, np.int32)
        b = len(length)
        starts = np.repeat(starts, rows // starts.shape[1], axis=1)
        q = rng.normal(size=(b, rows, t, heads, size))
        k, v = rng.normal(size=(2, b, rows, kv_heads, t, size))
        positions = starts[..., None] + np.arange(t, dtype=np.int32)
        arrays = (jnp.asarray(x, jnp.float32) for x in (q, k, v))
        levels.append(TreeLevel(*arrays, jnp.asarray(length), jnp.asarray(positions, jnp.int32)))
        starts = starts + length
    return tuple(levels)


# Levels of (rows, tokens), lengths [B,R] of each, query and key heads.
TREES: dict[str, Any] = {
    "prompt-alone": ([(1, 9)], [[[9], [4], [1]]], 3, 3),
    "short-prompts-and-empty-completions": (
        [(1, 9), (4, 6)],
        [[[9], [1], [4]], [[6, 0, 1, 5], [0, 0, 0, 0], [6, 6, 2, 3]]],
        4,
        2,
    ),
    "empty-prompt": ([(1, 5), (2, 4)], [[[0], [5]], [[4, 0], [1, 2]]], 4, 1),
    "many-tiles": ([(1, 150), (3, 70)], [[[150], [17]], [[70, 33, 1], [0, 64, 70]]], 4, 2),
    "three-levels": (
        [(1, 5), (2, 3), (6, 4)],
        [[[5], [2]], [[3, 1], [0, 3]], [[4, 0, 1, 2, 3, 4], [1, 1, 4, 0, 2, 3]]],
        2,
        2,
    ),
}
MIXED = TREES["short-prompts-and-empty-completions"]
TREE_MARKS: dict[str, Any] = {"short-prompts-and-empty-completions": pytest.mark.slow, "three-levels": ()}
SOME_TREES = [pytest.param(name, marks=TREE_MARKS.get(name, pytest.mark.nightly)) for name in TREES]


def inside(level: TreeLevel) -> jax.Array:
    return (jnp.arange(level.q.shape[2]) < level.length[..., None])[..., None, None]


def weighted_sum(
    attend: Callable[..., Any], levels: tuple[TreeLevel, ...], cap: float | None, window: AttentionWindow | None
) -> Any:
    """Return the weighted sum of attention outputs within the lengths, and the outputs."""
    read = [jnp.where(inside(x), out, 0) for x, out in zip(levels, attend(levels, 0.3, cap, window), strict=True)]
    weights = [jax.random.normal(jax.random.key(i), out.shape) for i, out in enumerate(read)]
    return sum(jnp.sum(w * out) for w, out in zip(weights, read, strict=True)), read


@functools.cache
def differentiated(attend: Callable[..., Any], cap: float | None, size: int | None) -> Callable[..., Any]:
    """Return a compiled function: (value, outputs) and gradients by queries, keys and values, of levels and a flag."""

    def of(qkv: Any, levels: tuple[TreeLevel, ...], slides: Any) -> Any:
        full = tuple(level._replace(q=q, k=k, v=v) for level, (q, k, v) in zip(levels, qkv, strict=True))
        return weighted_sum(attend, full, cap, None if size is None else AttentionWindow(size, slides))

    return jit(jax.value_and_grad(of, has_aux=True))


def value_and_gradient(
    attend: Callable[..., Any],
    levels: tuple[TreeLevel, ...],
    cap: float | None = None,
    size: int | None = None,
    slides: bool = True,
) -> Any:
    qkv = [(level.q, level.k, level.v) for level in levels]
    return differentiated(attend, cap, size)(qkv, levels, jnp.asarray(slides))


def assert_same(got: Any, expected: Any, tolerance: float = 1e-5) -> None:
    for (path, item), other in zip(jax.tree.leaves_with_path(got), jax.tree.leaves(expected), strict=True):
        scale = max(float(np.abs(np.asarray(other)).max()), 1e-3)
        np.testing.assert_allclose(
            np.asarray(item, np.float32), other, rtol=0, atol=tolerance * scale, err_msg=jax.tree_util.keystr(path)
        )


@pytest.mark.parametrize("tree", SOME_TREES)
def test_backend_values_and_gradients_equal_plain_attention(tree: str, here: dict[str, Callable[..., Any]]) -> None:
    levels = make_levels(*TREES[tree])
    expected = value_and_gradient(xla.attend_tree, levels)
    for backend in here.values():
        assert_same(value_and_gradient(backend, levels), expected)


def packed_levels() -> tuple[TreeLevel, ...]:
    """Return levels whose last rows hold answers of these lengths, after prompts of 150, 17 and 0 tokens."""
    rows = [[[40, 29, 1], [70], []], [[33, 32], [1, 1, 60], [5]], [[10, 3], [], [20, 20, 20]]]
    lengths = [[sum(answers) for answers in of_prompt] for of_prompt in rows]
    prompt, levels = make_levels([(1, 150), (3, 70)], [[[150], [17], [0]], lengths], 4, 2)
    owner, offset = np.full((3, 3, 70), -1, np.int32), np.zeros((3, 3, 70), np.int32)
    starts = np.zeros((3, 9), np.int32)
    for i, of_prompt in enumerate(rows):
        for row, answers in enumerate(of_prompt):
            ends = np.cumsum([0, *answers])
            for number, size in enumerate(answers):
                owner[i, row, ends[number] : ends[number + 1]] = 3 * row + number
                starts[i, 3 * row + number] = 70 * row + ends[number]
                offset[i, row, ends[number] : ends[number + 1]] = np.arange(size)
    positions = prompt.length[..., None] + offset
    return prompt, levels._replace(
        owner=jnp.asarray(owner), positions=jnp.asarray(positions), starts=jnp.asarray(starts)
    )


@pytest.mark.parametrize(
    ("backend", "cap", "size"),
    [
        pytest.param("splash", None, None, marks=pytest.mark.nightly),
        ("splash", 2.0, None),
        pytest.param("cudnn", None, None, marks=pytest.mark.nightly),
        ("cudnn", None, 5),
    ],
)
def test_packed_answers_attend_to_their_prompt_and_themselves(
    backend: str, cap: float | None, size: int | None, here: dict[str, Callable[..., Any]]
) -> None:
    levels = packed_levels()
    want = value_and_gradient(xla.attend_tree, levels, cap, size)
    assert_same(value_and_gradient(here[backend], levels, cap, size), want)


def test_packed_mask_with_too_many_answers_is_rejected() -> None:
    assert splash.PackedMask.of([(1, 8192), (5, 20480)], 110592).bits == 15
    with pytest.raises(InputError, match="exceed its mask with rows of 20480: set packing=false"):
        splash.PackedMask.of([(1, 40960), (5, 20480)], 143360)


@pytest.mark.skipif(
    cpu.cpu_flags().isdisjoint({"amx_bf16", "avx512_bf16"}), reason="needs a CPU with instructions for bfloat16"
)
@pytest.mark.parametrize(
    "tree",
    [pytest.param(name, marks=() if name == "three-levels" else pytest.mark.nightly) for name in TREES],
)
def test_amx_backend_equals_float32_within_bfloat16_rounding(tree: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(cpu, "has_bfloat16_products", lambda: True)  # slower instructions compute the same
    levels = jax.tree.map(
        lambda x: np.asarray(x, jnp.bfloat16) if x.dtype == jnp.float32 else x, make_levels(*TREES[tree], size=64)
    )
    wide = jax.tree.map(lambda x: np.asarray(x, np.float32) if x.dtype == jnp.bfloat16 else x, levels)
    assert_same(value_and_gradient(amx.attend_tree, levels), value_and_gradient(xla.attend_tree, wide), 2e-2)


def test_cpu_backend_follows_its_bfloat16_support(monkeypatch: pytest.MonkeyPatch) -> None:
    for has_unit, backend in ((False, xla), (True, amx)):
        monkeypatch.setattr(cpu, "has_bfloat16_products", lambda has_unit=has_unit: has_unit)
        assert for_platform("auto", CONFIG, jnp.bfloat16, "cpu") is backend.attend_tree
        assert for_platform("auto", CONFIG, jnp.float32, "cpu") is xla.attend_tree
    with pytest.raises(InputError, match=r"model\.attention=amx: it multiplies bfloat16, and activations are float32"):
        for_platform("amx", CONFIG, jnp.float32, "cpu")
    monkeypatch.setattr(cpu, "has_bfloat16_products", lambda: False)
    with pytest.raises(InputError, match="this processor has no fast products of bfloat16"):
        for_platform("amx", CONFIG, jnp.bfloat16, "cpu")


@pytest.mark.nightly
def test_splash_score_cap_equals_plain_attention(here: dict[str, Callable[..., Any]]) -> None:
    levels = make_levels(*MIXED)
    expected = value_and_gradient(xla.attend_tree, levels, cap=0.5)
    assert_same(value_and_gradient(here["splash"], levels, cap=0.5), expected)
    assert abs(expected[0][0] - value_and_gradient(xla.attend_tree, levels)[0][0]) > 1e-2


def test_windows_with_a_traced_flag_cross_into_the_prompt(
    here: dict[str, Callable[..., Any]],
) -> None:
    levels = make_levels(*TREES["three-levels"])
    full = value_and_gradient(xla.attend_tree, levels)
    expected = value_and_gradient(xla.attend_tree, levels, size=3)
    assert_same(value_and_gradient(here["cudnn"], levels, size=3), expected)
    assert_same(value_and_gradient(here["cudnn"], levels, size=3, slides=False), full)
    assert abs(expected[0][0] - full[0][0]) > 1e-2


def test_keys_after_the_length_are_never_read(here: dict[str, Callable[..., Any]]) -> None:
    levels = make_levels(*TREES["three-levels"])
    beyond = tuple(
        level._replace(**{n: jnp.where(jnp.swapaxes(inside(level), 2, 3), getattr(level, n), 7.0) for n in "kv"})
        for level in levels
    )
    for backend in here.values():
        (_, read), (_, same) = (value_and_gradient(backend, some)[0] for some in (levels, beyond))
        for item, other in zip(read, same, strict=True):
            np.testing.assert_array_equal(item, other)


def test_splash_mask_equals_the_tree_mask() -> None:
    cut = splash.tree_mask(((1, 3), (2, 2)), 9)
    rows = [
        "100000000",
        "110000000",
        "111000000",
        "111100000",
        "111110000",
        "111001000",
        "111001100",
        "000000010",
        "000000011",
    ]
    expected = np.array([[c == "1" for c in row] for row in rows])
    np.testing.assert_array_equal(cut(slice(0, 9), slice(0, 9)), expected)
    np.testing.assert_array_equal(cut(slice(3, 6), slice(2, 7)), expected[3:6, 2:7])


@pytest.mark.parametrize(
    ("sizes", "length"), [(((1, 16), (2, 24)), 80), (((1, 8), (2, 8), (4, 16)), 96), (((1, 7), (3, 11)), 64)]
)
@pytest.mark.parametrize("tile", [1, 4, 8, 16])
def test_mask_tiles_equal_slices_of_the_whole_mask(sizes: tuple[tuple[int, int], ...], length: int, tile: int) -> None:
    cut = splash.tree_mask(sizes, length)
    whole = cut(slice(0, length), slice(0, length))
    for i in range(0, length, tile):
        for j in range(0, length, tile):
            at = slice(i, i + tile), slice(j, j + tile)
            np.testing.assert_array_equal(cut(*at), whole[at])


def random_batch(b: int, g: int, p: int, t: int) -> GroupBatch:
    """Draw a batch with a prompt of one token, an empty completion and full-length ones."""
    r = np.random.default_rng(0)
    per_token = jnp.asarray(r.normal(-4, 0.3, (b, g, t)), jnp.float32)
    prompt_len, completion_len = r.integers(1, p + 1, b), r.integers(1, t + 1, (b, g))
    prompt_len[0], completion_len[0, 0], completion_len[1] = 1, 0, t
    return GroupBatch(
        shared=(Segment(jnp.asarray(r.integers(0, 64, (b, p))), jnp.asarray(prompt_len)),),
        completion=jnp.asarray(r.integers(0, 64, (b, g, t))),
        completion_len=jnp.asarray(completion_len),
        loss_mask=jnp.asarray(r.random((b, g, t)) < 0.8),
        behavior_logprobs=per_token,
        rollout_logprobs=per_token,
        old_logprobs=per_token,
        reference_logprobs=per_token,
        # All positive: a loss that nearly cancels could not be compared.
        advantage=jnp.asarray(1 + r.random((b, g, 1)), jnp.float32),
        reward=jnp.zeros((b, g)),
        weight=jnp.ones((b, g)),
        truncated=jnp.zeros((b, g), bool),
    )


def loss_and_gradients(config: ModelConfig, attention: Any, batch: GroupBatch, remat: str = "none") -> Any:
    policy = make_policy(config, 0.9, remat, attention=attention)
    cfg = GrpoConfig(kl=KlConfig(coef=0.05), loss=LossConfig(entropy_bonus=0.01), clip=ClipConfig(high=0.3))

    def mean_loss(params: Any) -> jax.Array:
        result = grpo_loss(policy(params, None, batch), batch, cfg, on_policy=False)
        return result.sum / result.weight

    return jit(jax.value_and_grad(mean_loss))(init_params(config, jax.random.key(0)))


@pytest.mark.parametrize(
    ("name", "config", "remat"),
    [
        pytest.param("splash", CONFIG, "full", marks=pytest.mark.nightly, id="splash"),
        pytest.param("cudnn", SLIDING, "query,key,value,attended", marks=pytest.mark.nightly, id="cudnn-sliding"),
    ],
)
def test_model_update_is_equal_with_each_backend(
    name: str, config: ModelConfig, remat: str, here: dict[str, Callable[..., Any]]
) -> None:
    batch = random_batch(2, 3, 11, 16)
    assert_same(loss_and_gradients(config, here[name], batch, remat), loss_and_gradients(config, "xla", batch))


@pytest.mark.skipif(jax.default_backend() != "cpu", reason="other platforms multiply transposed matrices")
def test_float32_attention_on_a_cpu_transposes_no_scores() -> None:
    x, heads, s, size = 96, 2, 80, 16  # X = 96 queries per head, M = 2 query heads per key head
    products = xla.MatrixProducts()

    def attended(q: jax.Array, k: jax.Array, v: jax.Array) -> jax.Array:
        return jnp.sum(products.weighted_sum(jnp.exp(products.score(q, k)), v) ** 2)

    shapes = ((1, 1, x, heads, 2, size), (1, 1, heads, s, size), (1, 1, heads, s, size))
    arrays = (jax.ShapeDtypeStruct(shape, jnp.float32) for shape in shapes)
    program = jax.jit(jax.grad(attended, (0, 1, 2))).lower(*arrays).compile().as_text()
    moved = re.findall(r"= f32\[([\d,]*)\]\S* (?:copy|transpose)\(", program)
    sizes = [math.prod(map(int, shape.split(","))) for shape in moved]
    assert sizes  # queries and values are transposed
    assert max(sizes) < x * heads * 2 * s


@pytest.mark.skipif(jax.default_backend() != "cpu", reason="the choice of backends depends on the platform")
def test_backend_of_another_platform_is_rejected_with_alternatives() -> None:
    for name, platform in (("cudnn", "gpu"), ("splash", "tpu")):
        with pytest.raises(InputError, match=rf"model\.attention={name}: it runs on {platform}.* cpu; .*auto, xla"):
            choose(name, CONFIG, jnp.bfloat16)
    with pytest.raises(InputError, match="valid are auto, xla, amx, cudnn, splash"):
        choose("flash", CONFIG, jnp.bfloat16)


def test_unknown_backend_is_rejected_before_compilation() -> None:
    policy = make_policy(CONFIG, attention="flash")
    with pytest.raises(InputError, match="flash"):
        jax.eval_shape(policy, init_params(CONFIG, jax.random.key(0)), None, random_batch(2, 2, 4, 4))


@dataclasses.dataclass
class Client:
    platform_version: str


@dataclasses.dataclass
class Gpu:
    """The attributes of a device that `refusal` reads; the machine that runs these tests has no GPU."""

    client: Client
    compute_capability: str
    platform: str = "gpu"


@pytest.mark.parametrize(
    ("config", "dtype", "capability", "message"),
    [
        (CONFIG, "bfloat16", "9.0", None),
        (SLIDING, "float16", "8.0", None),
        (CONFIG, "float32", "9.0", "float32, it computes in bfloat16 or float16"),
        (dataclasses.replace(CONFIG, head_dim=12), "bfloat16", "9.0", "head_dim is 12"),
        (dataclasses.replace(CONFIG, head_dim=256), "bfloat16", "9.0", None),
        (dataclasses.replace(CONFIG, head_dim=256), "bfloat16", "8.9", "head_dim is 256.* up to 128"),
        (CAPPED, "bfloat16", "9.0", "soft caps of attention scores"),
    ],
)
def test_cudnn_limitations_are_reported(
    monkeypatch: pytest.MonkeyPatch, config: ModelConfig, dtype: str, capability: str, message: str | None
) -> None:
    monkeypatch.setattr(jax, "devices", lambda: [Gpu(Client("cuda 13000"), capability)])
    monkeypatch.setattr(jax, "default_backend", lambda: "gpu")
    if message is None:
        assert choose("cudnn", config, dtype) is choose("auto", config, dtype) is cudnn.attend_tree
        return
    with pytest.raises(InputError, match=message):
        choose("cudnn", config, dtype)
    assert choose("auto", config, dtype) is xla.attend_tree


def test_splash_limitations_are_reported(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(jax, "default_backend", lambda: "tpu")
    assert choose("auto", CAPPED, "float32") is BACKENDS["splash"].attend
    with pytest.raises(InputError, match="sliding windows"):
        choose("splash", SLIDING, "bfloat16")
    with pytest.raises(InputError, match="float16"):
        choose("splash", CONFIG, "float16")


@pytest.mark.skipif(jax.default_backend() != "gpu", reason="needs a GPU")
@pytest.mark.parametrize("tree", TREES)
@pytest.mark.parametrize("size", [None, 3], ids=["full", "sliding"])
def test_cudnn_bfloat16_on_a_gpu_is_near_plain_float32(tree: str, size: int | None) -> None:
    levels = make_levels(*TREES[tree], 64)
    rough = tuple(x._replace(**{name: getattr(x, name).astype("bfloat16") for name in "qkv"}) for x in levels)
    (_, exact), exact_grads = value_and_gradient(xla.attend_tree, levels, size=size)
    (_, read), grads = value_and_gradient(cudnn.attend_tree, rough, size=size)
    assert_same((read, grads), (exact, exact_grads), 0.05)
