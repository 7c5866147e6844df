"""Time forward pass, update and decoding of Qwen2.5's shapes on this device, compared with its measured rates.

`python scripts/gpu_check.py --out DIR`: random weights in bfloat16 (so are activations, gradients and the optimizer's
state), 0.5B and 1.5B; prompts of 1,024 tokens, G = 8 completions of 512, decoding at 64 rows. Model utilization (MFU)
is the operations of the grouped computation (`models/flops.py`: prompts once, no masked or repeated work) over time and
over the rate of one large bfloat16 product measured here. A decode step is compared with the time to copy its bytes at
the bandwidth measured here. Every attention backend that supports this device is measured; their losses must agree.
Prints each row when it is measured, then rewrites DIR/gpu_check.json and DIR/gpu_check.md, so that a time limit loses
at most one row. The exit code is 1 if anything failed. `--tiny` (the default on a CPU) runs small shapes in a minute.
`scripts/gpu_check.sh` also runs the tests.
"""

from __future__ import annotations

import argparse
import statistics
import sys
import time
from collections.abc import Callable, Iterator, Sequence
from functools import partial
from pathlib import Path
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np
from harness import machine_facts, write_result

from jaxrl_sql.algo.loss import grpo_loss
from jaxrl_sql.algo.optim import make_optimizer
from jaxrl_sql.algo.step import init_state, make_scorer, make_step
from jaxrl_sql.batch import GroupBatch, Segment
from jaxrl_sql.config import GrpoConfig, KlConfig, OptimConfig
from jaxrl_sql.models import ModelConfig, Norms, Rope, count_params, init_params
from jaxrl_sql.models.attention import BACKENDS, choose
from jaxrl_sql.models.attention.paged_kernel import kernel_for
from jaxrl_sql.models.flops import decode_bytes, grouped_forward_flops, update_flops
from jaxrl_sql.models.policy import make_policy
from jaxrl_sql.rollout import Engine, EngineConfig, SamplingParams
from jaxrl_sql.rollout.engine import DEFAULT
from jaxrl_sql.types import InputError

# Settings that the update tries until memory suffices: keep projections, keep nothing.
REMATS = ("query,key,value,attended,gate,up", "full")
# Two backends' losses in bfloat16 may differ by this much, as a share.
MAX_DIFFERENCE = 0.02

Row = dict[str, Any]


def qwen2(width: int, layers: int, heads: int, size: int, ff: int, vocab: int = 151_936) -> ModelConfig:
    """Return a shape of the Qwen2.5 family with two key heads and tied embeddings."""
    return ModelConfig("qwen2", vocab, width, layers, heads, 2, size, ff, Rope(1e6), Norms(), True, False, True, 32_768)


class Plan(NamedTuple):
    """The timed work: models, their dtype, P, G, T, prompts per update and decoding batch, tokens per chunk, probes."""

    models: dict[str, ModelConfig]
    dtype: str
    prompt: int
    group: int
    completion: int
    update_prompts: int
    decode_prompts: int
    chunk: int
    product: int
    copied: int
    runs: int


FULL = Plan(
    {"0.5B": qwen2(896, 24, 14, 64, 4864), "1.5B": qwen2(1536, 28, 12, 128, 8960)}, "bfloat16",
    1024, 8, 512, 4, 8, 128, 8192, 1 << 30, 5,
)  # fmt: skip
# XLA's CPU backend lacks some products of bfloat16.
TINY = Plan({"tiny": qwen2(64, 2, 4, 16, 128, 512)}, "float32", 64, 4, 32, 2, 2, 16, 512, 16 << 20, 2)


def random_batch(plan: Plan, config: ModelConfig) -> GroupBatch:
    """Draw a full batch for the update."""
    r = np.random.default_rng(0)
    b, p, g, t = plan.update_prompts, plan.prompt, plan.group, plan.completion
    per_token = jnp.asarray(r.normal(-8, 0.1, (b, g, t)), "float32")
    ids = partial(r.integers, 0, config.vocab_size, dtype=np.int32)
    return GroupBatch(
        shared=(Segment(jnp.asarray(ids((b, p))), jnp.full((b,), p)),),
        completion=jnp.asarray(ids((b, g, t))),
        completion_len=jnp.full((b, g), t),
        loss_mask=jnp.ones((b, g, t), bool),
        behavior_logprobs=per_token,
        rollout_logprobs=per_token,
        old_logprobs=per_token,
        reference_logprobs=per_token,
        reward=jnp.zeros((b, g)),
        advantage=jnp.asarray(r.normal(0, 1, (b, g, 1)), "float32"),
        weight=jnp.ones((b, g)),
        truncated=jnp.zeros((b, g), bool),
    )


def time_call(call: Callable[[], Any], runs: int) -> float:
    """Return the median seconds of `runs` calls after a warm-up call."""
    jax.block_until_ready(call())
    seconds = []
    for _ in range(runs):
        start_time = time.perf_counter()
        jax.block_until_ready(call())
        seconds.append(time.perf_counter() - start_time)
    return statistics.median(seconds)


def product_rate(size: int, dtype: str, runs: int) -> float:
    """Measure operations per second of square products of random matrices, eight in sequence."""
    left, right = (jax.random.normal(jax.random.key(i), (size, size), dtype) / size**0.5 for i in range(2))
    chain = jax.jit(lambda x, y: jax.lax.fori_loop(0, 8, lambda _, z: z @ y, x))
    return 8 * 2 * size**3 / time_call(lambda: chain(left, right), runs)


def copy_rate(size: int, runs: int) -> float:
    """Measure bytes per second, read and written, of a scaled copy of `size` bytes."""
    x = jnp.ones(size // 4, jnp.float32)
    scale = jax.jit(lambda x: x * 1.0001)
    return 2 * size / time_call(lambda: scale(x), runs)


def backends(config: ModelConfig, dtype: str) -> Iterator[tuple[str, str | None]]:
    """Yield each attention backend with the reason why it does not support this device, or None."""
    for name in BACKENDS:
        try:
            choose(name, config, dtype)
        except InputError as error:
            yield name, str(error)
        else:
            yield name, None


def is_out_of_memory(error: Exception) -> bool:
    """Return whether the device ran out of memory."""
    return "RESOURCE_EXHAUSTED" in str(error) or "out of memory" in str(error).lower()


def time_forward(plan: Plan, config: ModelConfig, attention: str, rate: float) -> Row:
    """Time the scoring of a batch without a gradient."""
    params, batch = init_params(config, jax.random.key(0), plan.dtype), random_batch(plan, config)
    score = make_scorer(make_policy(config, attention=attention))
    start_time = time.perf_counter()
    compiled = score.lower(params, None, batch).compile()  # type: ignore[attr-defined]
    compile_s = time.perf_counter() - start_time
    seconds = time_call(lambda: compiled(params, None, batch), plan.runs)
    shape = plan.update_prompts, plan.prompt, plan.group, plan.completion
    mean = float(jnp.mean(compiled(params, None, batch)[0]))
    return throughput(plan, seconds, grouped_forward_flops(config, *shape), rate, compiled) | {
        "compile_s": compile_s,
        "mean_logprob": mean,
    }


def time_update(plan: Plan, config: ModelConfig, attention: str, rate: float) -> Row:
    """Time a GRPO update with AdamW that stores as much for the backward pass as memory allows."""
    batch = random_batch(plan, config)
    optimizer = make_optimizer(OptimConfig(lr=1e-6), 100)
    loss = partial(grpo_loss, cfg=GrpoConfig(kl=KlConfig(coef=0.04)), on_policy=True)
    for remat in REMATS:
        step = make_step(make_policy(config, remat=remat, attention=attention), loss, optimizer)
        try:
            return _run_updates(plan, config, step, optimizer, batch, rate) | {"remat": remat}
        except jax.errors.JaxRuntimeError as error:
            if remat == REMATS[-1] or not is_out_of_memory(error):
                raise
    raise AssertionError


def _run_updates(plan: Plan, config: ModelConfig, step: Any, optimizer: Any, batch: GroupBatch, rate: float) -> Row:
    state = jax.jit(lambda key: init_state(init_params(config, key, plan.dtype), optimizer))(jax.random.key(0))
    start_time = time.perf_counter()
    compiled = jax.jit(step, donate_argnums=0).lower(state, batch).compile()
    compile_s = time.perf_counter() - start_time
    states = {"state": state}

    def call() -> Any:
        states["state"], metrics = compiled(states["state"], batch)
        return metrics

    total, weight = call()["policy/loss"]
    seconds = time_call(call, plan.runs)
    shape = plan.update_prompts, plan.prompt, plan.group, plan.completion
    return throughput(plan, seconds, update_flops(config, *shape), rate, compiled) | {
        "compile_s": compile_s,
        "loss": float(total / weight),
    }


def throughput(plan: Plan, seconds: float, flops: float, rate: float, compiled: Any) -> Row:
    """Return tokens per second (each prompt counts once), operations, their share of `rate`, and temporary memory."""
    tokens = plan.update_prompts * (plan.prompt + plan.group * plan.completion)
    memory = compiled.memory_analysis()
    return {
        "seconds": seconds,
        "tokens_per_s": tokens / seconds,
        "tflops_per_s": flops / seconds / 1e12,
        "mfu": flops / seconds / rate,
        "temp_gib": memory.temp_size_in_bytes / 2**30 if memory else None,
    }


class Endless:
    """A tokenizer whose end token the model never samples, so that every answer has its full length."""

    eos_token = "end"  # noqa: S105 (a token's name)

    def __init__(self, vocab_size: int) -> None:
        self.end = vocab_size

    def get_vocab(self) -> dict[str, int]:
        """Return a token for each of the model's ids, and the end token."""
        return {**{str(i): i for i in range(self.end)}, "end": self.end}

    def decode(self, ids: Sequence[int], **_: Any) -> str:
        """Return the number of ids as text; decoding is not timed."""
        return str(len(ids))


def time_decode(plan: Plan, config: ModelConfig, attention: str, rate: float, bandwidth: float) -> Row:
    """Time the engine, including sampling: one new token per sample for the prefill, and whole completions."""
    del rate
    b, g, t = plan.decode_prompts, plan.group, plan.completion
    params = init_params(config, jax.random.key(0), plan.dtype)
    engine_config = EngineConfig(b * g, chunk_steps=plan.chunk, attention=attention)
    engine = Engine(config, params, Endless(config.vocab_size), engine_config)
    r = np.random.default_rng(0)
    prompts = [r.integers(0, config.vocab_size, plan.prompt).tolist() for _ in range(b)]

    def generate(tokens: int) -> None:
        engine.reset_prefix_cache()
        samples = list(engine.generate(prompts, SamplingParams(n=g, max_new_tokens=tokens)))
        assert all(len(sample.token_ids) == tokens for sample in samples), "a completion stopped early"

    prefill_s = time_call(partial(generate, 1), plan.runs)
    step = (time_call(partial(generate, t), plan.runs) - prefill_s) / (t - 1)
    step_bytes = decode_bytes(config, b, plan.prompt, g, (t - 1) / 2, jnp.dtype(plan.dtype).itemsize)
    return {
        "rows": b * g,
        "prefill_s": prefill_s,
        "prefill_tokens_per_s": b * plan.prompt / prefill_s,
        "ms_per_step": 1e3 * step,
        "tokens_per_s": b * g / step,
        "gb_per_step": step_bytes / 1e9,
        "ms_at_bandwidth": 1e3 * step_bytes / bandwidth,
        "of_bandwidth": step_bytes / bandwidth / step,
    }


def measure_or_fail(what: str, model: str, attention: str, measure: Callable[[], Row]) -> Row:
    """Measure one row; a failure also becomes a row."""
    head = {"what": what, "model": model, "attention": attention}
    try:
        return head | measure()
    except Exception as error:  # noqa: BLE001 - the script reports any error of a new platform
        return head | {"error": f"{type(error).__name__}: {str(error).strip()[:500]}"}


def measure_all(plan: Plan, rate: float, bandwidth: float) -> Iterator[Row]:
    """Measure every row of the plan."""
    for model, config in plan.models.items():
        for attention, reason in backends(config, plan.dtype):
            if reason:
                yield {"what": "refused", "model": model, "attention": attention, "reason": reason}
                continue
            for what, measure in (("forward", time_forward), ("update", time_update)):
                yield measure_or_fail(what, model, attention, partial(measure, plan, config, attention, rate))
        for attention in ("xla", "pallas"):
            try:
                kernel_for(
                    attention, config, (DEFAULT.block_size, DEFAULT.completion_block_size), jax.default_backend(), 1
                )
            except InputError as error:
                yield {"what": "refused", "model": model, "attention": attention, "reason": str(error)}
                continue
            decode = partial(time_decode, plan, config, attention, rate, bandwidth)
            yield measure_or_fail("decode", model, attention, decode)


def disagreements(rows: list[Row]) -> list[str]:
    """Return the losses and log-probabilities of backends that differ by more than bfloat16 explains."""
    messages = []
    for number in ("mean_logprob", "loss"):
        for model in {row["model"] for row in rows}:
            values = {row["attention"]: row[number] for row in rows if row["model"] == model and number in row}
            if not all(map(np.isfinite, values.values())):
                messages.append(f"{model}: {number} is not finite: {values}")
            elif values and np.ptp(list(values.values())) > MAX_DIFFERENCE * max(map(abs, values.values())):
                messages.append(f"{model}: {number} differs: {values}")
    return messages


def format_row(row: Row) -> str:
    """Write a row of the table."""
    if "error" in row or "reason" in row:
        cells = [row.get("error") or row["reason"], *[""] * 5]
    elif row["what"] == "decode":
        cells = [
            f"{row['ms_per_step']:.2f} ms per step, prefill {1e3 * row['prefill_s']:.1f} ms",
            f"{row['tokens_per_s']:,.0f}",
            "",
            f"{row['of_bandwidth']:.0%} of the rate of {row['gb_per_step']:.2f} GB per step",
            "",
            "",
        ]
    else:
        temp = "" if row["temp_gib"] is None else f"{row['temp_gib']:.1f}"
        tokens, mfu = f"{row['tokens_per_s']:,.0f}", f"{row['mfu']:.1%}"
        cells = [f"{row['seconds']:.3f} s", tokens, mfu, "", temp, f"{row['compile_s']:.0f}"]
    return "| " + " | ".join([row["what"], row["model"], row["attention"], *cells]) + " |"


def figures_of(row: Row) -> Iterator[Row]:
    """Yield the figures of a row for a stored result; a failed row has its reason."""
    name = f"{row['what']}, {row['model']}, {row['attention']}"
    if "error" in row or "reason" in row:
        yield {"name": name, "column": "time", "text": row.get("error") or row["reason"]}
        return
    if row["what"] == "decode":
        time_of = f"{row['ms_per_step']:.2f} ms per step, prefill {1e3 * row['prefill_s']:.1f} ms"
        share = f"{row['of_bandwidth']:.0%} for {row['gb_per_step']:.2f} GB per step"
        yield {"name": name, "column": "time", "text": time_of}
    else:
        share = f"{row['mfu']:.1%}"
        yield {"name": name, "column": "time", "median": round(row["seconds"], 3), "unit": "s"}
    yield {"name": name, "column": "tokens/s", "median": round(row["tokens_per_s"])}
    yield {"name": name, "column": "MFU, or share of bandwidth", "text": share}
    if row.get("temp_gib") is not None:
        yield {"name": name, "column": "temporaries", "median": round(row["temp_gib"], 1), "unit": "GiB"}


def table_head(result: dict[str, Any], plan: Plan) -> str:
    """Return the lines above the rows: the device, its rates, shapes, and the columns' names."""
    shape = f"P={plan.prompt:,} G={plan.group} T={plan.completion}; an update of {plan.update_prompts} prompts"
    probes = f"{result['product_tflops']:.1f} TFLOP/s in a {plan.dtype} product of {plan.product:,}"
    columns = (
        "what | model | attention | time | tokens/s | MFU | share of bandwidth | temporaries, GiB | compile time, s"
    )
    lines = [
        f"{result['device']}, jax {result['jax']}: {probes}, {result['copy_gb_per_s']:,.0f} GB/s in a copy",
        f"{shape}, decoding {plan.decode_prompts * plan.group} rows; medians of {plan.runs}",
        "",
        f"| {columns} |",
        "|---" * len(columns.split(" | ")) + "|",
    ]
    return "\n".join(lines) + "\n"


def write(folder: Path, result: dict[str, Any], plan: Plan) -> None:
    """Write the rows measured so far as JSON and as a page."""
    figures = [figure for row in result["rows"] for figure in figures_of(row)]
    fields = {name: value for name, value in result.items() if name != "rows"}
    write_result(folder / "gpu_check.json", figures, machine_facts(), measured=result["rows"], **fields)
    below = [*map(format_row, result["rows"]), "", *result["disagreements"]]
    page = table_head(result, plan) + "\n".join(below).rstrip() + "\n"
    (folder / "gpu_check.md").write_text(page, encoding="utf-8")


def main() -> int:
    """Measure, print, write."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--out", type=Path, default=Path("runs/gpu_check"))
    parser.add_argument("--tiny", action="store_true", help="small shapes (the default on a CPU)")
    parser.add_argument("--models", default="", help="some of the models, as in 0.5B,1.5B")
    options = parser.parse_args()
    device = jax.devices()[0]
    plan = TINY if options.tiny or device.platform == "cpu" else FULL
    if options.models:
        plan = plan._replace(models={name: plan.models[name] for name in options.models.split(",")})
    options.out.mkdir(parents=True, exist_ok=True)
    rate, bandwidth = product_rate(plan.product, plan.dtype, plan.runs), copy_rate(plan.copied, plan.runs)
    result: dict[str, Any] = {
        "device": device.device_kind,
        "jax": jax.__version__,
        "product_tflops": rate / 1e12,
        "copy_gb_per_s": bandwidth / 1e9,
        "plan": plan._asdict() | {"models": {name: count_params(config) for name, config in plan.models.items()}},
        "rows": [],
        "disagreements": [],
    }
    sys.stdout.write(table_head(result, plan))
    for row in measure_all(plan, rate, bandwidth):
        result["rows"].append(row)
        result["disagreements"] = disagreements(result["rows"])
        write(options.out, result, plan)
        sys.stdout.write(format_row(row) + "\n")
        sys.stdout.flush()
    sys.stdout.write("".join(f"{text}\n" for text in result["disagreements"]))
    return 1 if result["disagreements"] or any("error" in row for row in result["rows"]) else 0


if __name__ == "__main__":
    sys.exit(main())
