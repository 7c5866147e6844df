"""Formulas for memory and work, against values computed by hand and against the functions of a run."""

from __future__ import annotations

import dataclasses
from collections.abc import Mapping
from pathlib import Path

import jax
import pytest

from jaxrl_sql.config import TrainConfig, load_config
from jaxrl_sql.models import ModelConfig, Norms, Rope, count_params, init_params
from jaxrl_sql.models.flops import UPDATE_PASSES, grouped_forward_flops, layer_weights, update_flops
from jaxrl_sql.models.ops.micro_batches import row_counts
from jaxrl_sql.models.shapes import published_config
from jaxrl_sql.parallel.rules import AnyMesh, num_batch_shards
from jaxrl_sql.planning import memory, plan, roofline, suggestions, workload
from jaxrl_sql.planning.chips import CHIPS, Chip, Topology, find_topology
from jaxrl_sql.planning.lengths import ALL_LONGEST, Lengths, StepLengths, truncated_exponential
from jaxrl_sql.planning.memory import MemoryEstimate, PlannedModel, abstract_mesh, params_per_device
from jaxrl_sql.planning.plan import Plan, mesh_sizes
from jaxrl_sql.planning.roofline import Cost, StepProgram
from jaxrl_sql.planning.suggestions import Suggestion
from jaxrl_sql.planning.units import format_bytes
from jaxrl_sql.planning.workload import Update, Workload, update_logit_chunks, with_packing, with_parts, with_schemas
from jaxrl_sql.rollout import Engine, EngineConfig, SamplingParams
from jaxrl_sql.rollout.sampling import GenerationRequest
from jaxrl_sql.types import InputError, Prompt

SMALL = Path(__file__).parents[2] / "small.yaml"

MODEL = ModelConfig("qwen3", 512, 32, 2, 4, 2, 8, 48, Rope(1e4), Norms(), True, False, True, 1024)


class Letters:
    """A tokenizer that only provides its end token."""

    eos_token = "t0"  # noqa: S105 (a token's name)

    def get_vocab(self) -> dict[str, int]:
        return {f"t{i}": i for i in range(512)}

    def decode(self, _: object, **__: object) -> str:
        return ""


def config(*overrides: str) -> TrainConfig:
    return load_config(TrainConfig, SMALL, overrides)


def find_workload(cfg: TrainConfig, longest: int, num_shards: int) -> Workload:
    return workload.find_workload(cfg.model, cfg.workload(longest), num_shards)


def estimate(cfg: TrainConfig, shape: ModelConfig, mesh: AnyMesh, longest: int) -> MemoryEstimate:
    work = find_workload(cfg, longest, num_batch_shards(mesh.shape))
    return memory.estimate(PlannedModel(cfg.model, shape), mesh, work)


def phases(
    cfg: TrainConfig, shape: ModelConfig, sizes: Mapping[str, int], work: Workload, lengths: StepLengths = ALL_LONGEST
) -> list[StepProgram]:
    return roofline.phases(PlannedModel(cfg.model, shape), sizes, work, lengths)


def suggest(
    cfg: TrainConfig, shape: ModelConfig, sizes: Mapping[str, int], longest: int, have: int
) -> list[Suggestion]:
    return suggestions.suggest(cfg.workload(longest), PlannedModel(cfg.model, shape), sizes, have)


def make_plan(
    cfg: TrainConfig,
    shape: ModelConfig,
    topology: Topology,
    sizes: Mapping[str, int],
    longest: int,
    lengths: StepLengths = ALL_LONGEST,
) -> Plan:
    model = PlannedModel(cfg.model, shape)
    return plan.make_plan(cfg.workload(longest), model, topology, sizes, lengths)


def test_device_holds_its_shard_of_the_weights() -> None:
    all_of_it = count_params(MODEL)
    assert params_per_device(MODEL, abstract_mesh(1, 1, 1)) == all_of_it
    assert params_per_device(MODEL, abstract_mesh(4, 1, 1)) == all_of_it
    # fsdp shards all weights with a width, so not the biases of 4 + 2 + 2 heads; tensor shards all but the norms.
    biases, norms = 2 * (4 + 2 + 2) * 8, 2 * 2 * 32 + 32
    assert params_per_device(MODEL, abstract_mesh(1, 4, 1)) == (all_of_it - biases) // 4 + biases
    assert params_per_device(MODEL, abstract_mesh(1, 1, 2)) == (all_of_it - norms) // 2 + norms


def test_cache_size_follows_the_engine_for_maximum_lengths() -> None:
    cfg = config(
        "rollout.max_num_seqs=4",
        "grpo.prompts=4",
        "grpo.num_generations=4",
        "sampling.max_new_tokens=70",
        "validation.max_num_seqs=2",
    )
    load = find_workload(cfg, 100, 1).rollout
    assert load is not None
    # 4 prompts of 128 (bucket of 100), 2 pages of 64 each; 4 rows of 96, 3 pages of 32 each; pools are buckets.
    assert load.sizes[-3:] == (8, 12, 512)
    tokens = 64 * (8 + 512) + 32 * 12
    assert estimate(cfg, MODEL, abstract_mesh(1, 1, 1), 100).caches == tokens * 2 * 2 * 2 * 8 * 4


def test_plan_follows_the_engine_defaults(monkeypatch: pytest.MonkeyPatch) -> None:
    """The plan's sizes come from the engine: other defaults give other sizes."""
    cfg, mesh = config("rollout.max_num_seqs=4", "sampling.max_new_tokens=70"), abstract_mesh(1, 1, 1)
    before, bytes_before = find_workload(cfg, 300, 1).rollout, estimate(cfg, MODEL, mesh, 300).caches
    defaults = {field.name: field.default for field in dataclasses.fields(EngineConfig)}
    other = {**defaults, "block_size": 16, "completion_block_size": 8, "prefix_cache_tokens": 512, "prefill_tokens": 64}
    has_none = defaults["max_num_seqs"] is dataclasses.MISSING
    monkeypatch.setattr(EngineConfig.__init__, "__defaults__", tuple(other.values())[has_none:])
    after = find_workload(cfg, 300, 1).rollout
    assert before
    assert after
    assert (before.prefill_shape, after.prefill_shape) == ((2, 384), (1, 64))
    assert after.sizes.prefix_blocks == 512 // 16
    assert after.sizes.completion_columns == 96 // 8
    assert estimate(cfg, MODEL, mesh, 300).caches < bytes_before


def test_engine_padded_to_max_has_the_planned_pools() -> None:
    """The plan's pools are those of `run.pad_to_max`, which an engine creates at its first call."""

    cfg = config("rollout.max_num_seqs=4", "grpo.prompts=4", "grpo.num_generations=4", "sampling.max_new_tokens=40")
    load = find_workload(cfg, 100, 1).rollout
    assert load is not None
    sizes = EngineConfig(max_num_seqs=4, longest_prompt=100, pads_to_max=True)
    engine = Engine(MODEL, init_params(MODEL, jax.random.key(0)), Letters(), sizes)
    prompts = [Prompt(str(i), (1 + i,) * 100, "") for i in range(4)]
    engine.begin(GenerationRequest(prompts, [SamplingParams(max_new_tokens=40, n=4)] * 4, 0, None))
    pools = engine.runner.prompt_pool, engine.runner.completion_pool
    assert [pool and pool.num_blocks for pool in pools] == [load.sizes.prompt_blocks, load.sizes.completion_blocks]


def test_each_suggestion_reduces_memory() -> None:
    base = ("model.dtype=bfloat16", "grpo.prompts=64", "sampling.max_new_tokens=1024", "model.max_positions=4096")
    mesh, shape = abstract_mesh(1, 4, 1), published_config("qwen3-4b")
    plain = estimate(config(*base), shape, mesh, 1000).total
    for change in ("grpo.gradient_accumulation_steps=4", "model.remat=full", "model.lora.rank=16"):
        assert estimate(config(*base, change), shape, mesh, 1000).total < plain, change


def test_larger_optimizer_and_reference_of_two_phases_count() -> None:
    item, held = abstract_mesh(1, 1, 1), count_params(MODEL)
    both = ("sft.steps=2", "grpo.steps=2", "sft.optim.moments=float32", "grpo.optim.moments=bfloat16")
    assert estimate(config(*both), MODEL, item, 100).optimizer == held * 8
    assert estimate(config(*both, "sft.optim.kind=adafactor"), MODEL, item, 100).optimizer == held * 4
    assert estimate(config(*both, "sft.steps=0"), MODEL, item, 100).optimizer == held * 4
    taught = (*both, "grpo.kl.coef=0", "sft.held_out=0.1", "sft.eval_every=1")
    assert estimate(config(*taught), MODEL, item, 100).reference == 0
    assert estimate(config(*taught, "sft.patience=2"), MODEL, item, 100).reference == held * 4


def test_bfloat16_moments_are_suggested_per_phase() -> None:
    shape, sizes = published_config("qwen3-4b"), {"data": 1, "fsdp": 4, "tensor": 1}
    cfg = config("model.dtype=bfloat16", "sft.steps=2", "grpo.steps=2", "model.max_positions=1024")
    plain, held = (
        estimate(cfg, shape, abstract_mesh(**sizes), 100).total,
        params_per_device(shape, abstract_mesh(**sizes)),
    )
    result = {item.change: item.total for item in suggest(cfg, shape, sizes, 100, plain - 1)}
    assert result["grpo.optim.moments=bfloat16 sft.optim.moments=bfloat16"] == plain - 4 * held
    cfg = config("model.dtype=bfloat16", "sft.steps=2", "grpo.steps=0", "model.max_positions=1024")
    plain = estimate(cfg, shape, abstract_mesh(**sizes), 100).total
    assert "sft.optim.moments=bfloat16" in {entry.change for entry in suggest(cfg, shape, sizes, 100, plain - 1)}


def test_suggestions_fit_or_report_the_smallest_misfit() -> None:
    cfg = config("model.dtype=bfloat16", "grpo.prompts=64", "sampling.max_new_tokens=1024", "model.max_positions=4096")
    sizes, shape = {"data": 1, "fsdp": 4, "tensor": 1}, published_config("qwen3-4b")
    have = CHIPS["v5p"].memory
    result = suggest(cfg, shape, sizes, 1000, have)
    assert result
    assert all(item.total <= have for item in result)
    (last,) = suggest(cfg, shape, sizes, 1000, 1 << 20)
    assert last.total > 1 << 20
    assert "model.remat=full" in last.change


def test_suggestions_combine_with_other_meshes() -> None:
    """A 4B with Think2SQL's lengths fits 16 v5e without adapters: prompts in micro-batches, heads over eight chips."""
    cfg = load_config(TrainConfig, "configs/think2sql.yaml")
    shape, have = published_config("qwen3-4b"), CHIPS["v5e"].memory
    result = {
        item.change.partition(" ")[0]: item
        for item in suggest(cfg, shape, {"data": 1, "fsdp": 16, "tensor": 1}, 8192, have)
    }
    wide = result["--mesh=1x2x8"]
    assert wide.total <= have
    assert "grpo.gradient_accumulation_steps=" in wide.change
    assert "lora" not in wide.change
    assert all(entry.total <= have for entry in result.values())


def test_step_of_the_published_7b_on_32_chips_by_hand() -> None:
    cfg = load_config(TrainConfig, "configs/arctic.yaml", ["grpo.gradient_accumulation_steps=4"])
    shape = published_config("qwen2.5-coder-7b")
    sizes = {"data": 1, "fsdp": 32, "tensor": 1}
    result = estimate(cfg, shape, abstract_mesh(**sizes), 8192)
    # Two bytes per weight, two moments of two bytes, over 32 chips; shares of norms and biases are below 1e-3.
    assert result.weights == pytest.approx(2 * 7.6156e9 / 32, rel=2e-3)
    assert result.optimizer == pytest.approx(4 * 7.6156e9 / 32, rel=2e-3)
    # 16,384 prompt pages of 64, 512 cached, 65,536 row pages of 32; 57,344 bytes per token.
    assert result.caches == (16_896 * 64 + 65_536 * 32) * 57_344 // 32
    work = find_workload(cfg, 8192, 32)
    built = {
        phase.name: phase for phase in phases(cfg, shape, sizes, work, StepLengths(truncated_exponential(1000, 4096)))
    }
    # One prompt chunk per chip, eight chunks per prompt, and 256 prompts on 32 chips.
    assert work.rollout is not None
    assert work.rollout.prefill_shape == (32, 1024)
    assert built["prefill"].runs == 8 * 256 / 32
    assert built["prefill"].cost.flops == pytest.approx(2 * (6.53e9 + 28 * 28 * 128 * 8192) * 1024, rel=0.01)
    # Per group, 6.53e9 layer weights for 73,728 tokens and 5.45e8 logit weights for 65,536 of them; forward, recomputed
    # and backward; plus attention.
    products = 2 * (6.53e9 * 73_728 + 5.45e8 * 65_536) * 128 * 4 / 32
    pairs = 8192**2 / 2 + 16 * (4096 * 8192 + 4096**2 / 2)
    attention = 2 * 2 * 28 * 28 * 128 * pairs * 128 * 4 / 32
    assert built["update"].cost.flops == pytest.approx(products + attention, rel=0.01)
    assert built["update"].runs == 2
    # Each slot samples eight answers on average; the longest chain has a few longest answers more.
    assert 8 * 1000 < built["decode"].runs < 8 * 1000 + 4096
    assert [phase.runs for phase in phases(cfg, shape, sizes, work) if phase.name == "decode"] == [8 * 4096]
    # Each decode step gathers all weights except the local shard.
    assert built["decode"].cost.link > 2 * 7.07e9 * 31 / 32


def test_automatic_micro_batches_leave_a_prompt_per_shard() -> None:
    def parts(num_shards: int, *more: str) -> tuple[int, int]:
        zero = "grpo.gradient_accumulation_steps=0"
        cfg = config("grpo.prompts=32", "grpo.minibatches=2", "sft.databases=8", zero, *more)
        sft, grpo = with_parts(cfg.sft, cfg.grpo, num_shards)
        return sft.gradient_accumulation_steps, grpo.gradient_accumulation_steps

    assert parts(4, "sft.gradient_accumulation_steps=0") == (2, 4)
    assert parts(4)[0] == 1
    assert parts(16)[1] == 1


def test_sft_by_epochs_is_planned_like_sft_by_steps() -> None:
    settings = ("grpo.steps=0", "sft.databases=16", "sft.questions=2", "sft.max_completion_tokens=32")
    shape, topology = published_config("qwen3-0.6b"), find_topology("h100:1")
    by_steps, by_epochs, none = (
        make_plan(config(*settings, *more), shape, topology, mesh_sizes("1x1x1", 1), 384)
        for more in (["sft.steps=9"], ["sft.epochs=1"], [])
    )
    assert by_epochs.memory == by_steps.memory
    assert by_epochs.memory.optimizer > none.memory.optimizer == 0
    assert [phase.name for phase in by_epochs.phases] == ["update"]
    assert by_epochs.tokens == 16 * 2 * 32
    taught, sizes = config(*settings, "sft.epochs=1"), {"data": 1, "fsdp": 1, "tensor": 1}
    have = estimate(taught, shape, abstract_mesh(**sizes), 384).total
    helping = suggest(taught, shape, sizes, 384, have - 1)
    assert helping[0].change == "sft.gradient_accumulation_steps=2"
    with pytest.raises(InputError, match=r"mesh: sft\.databases=16 are not divisible by data x fsdp = 32"):
        make_plan(config(*settings, "sft.steps=9"), shape, find_topology("h100:32"), mesh_sizes("1x32x1", 32), 384)


def test_phase_takes_the_time_of_its_slowest_resource() -> None:
    chip = Chip(0, 100.0, 10.0, 1.0, 0, "")
    cost = Cost(200.0, 30.0, 2.5)
    assert cost.bounds(chip) == {"compute": 2.0, "memory": 3.0, "links": 2.5}
    assert (cost.seconds(chip), cost.bound_by(chip)) == (3.0, "memory")


def test_plan_that_does_not_fit_reports_excess_and_suggestions() -> None:
    cfg = load_config(TrainConfig, "configs/arctic.yaml", [])
    shape, topology = published_config("qwen2.5-coder-7b"), find_topology("v5p:4x4x2")
    plan = make_plan(cfg, shape, topology, mesh_sizes("1x32x1", 32), 8192)
    assert not plan.fits
    assert plan.total > topology.chip.memory
    assert "grpo.gradient_accumulation_steps=4" in [suggestion.change for suggestion in plan.suggestions]
    better = load_config(TrainConfig, "configs/arctic.yaml", ["grpo.gradient_accumulation_steps=4"])
    assert make_plan(better, shape, topology, mesh_sizes("1x32x1", 32), 8192).fits


def test_batch_that_the_mesh_does_not_divide_is_rejected() -> None:
    with pytest.raises(InputError, match="12 prompts of an update"):
        make_plan(config("grpo.prompts=12"), MODEL, find_topology("v5e:4x2"), mesh_sizes("1x8x1", 8), 100)
    of_schemas = config("grpo.prompts=16", "grpo.questions=4")
    make_plan(of_schemas, MODEL, find_topology("v5e:2x2"), mesh_sizes("1x4x1", 4), 100)
    with pytest.raises(InputError, match=r"16 prompts .* by grpo\.questions=4\) are not divisible by data x fsdp = 8"):
        make_plan(of_schemas, MODEL, find_topology("v5e:4x2"), mesh_sizes("1x8x1", 8), 100)


def test_suggestions_keep_the_questions_of_a_schema_together() -> None:
    settings = ("grpo.prompts=16", "grpo.questions=4", "grpo.num_generations=16", "sampling.max_new_tokens=1024")
    cfg, sizes = config(*settings, "model.max_positions=4096"), {"data": 1, "fsdp": 2, "tensor": 1}
    shape = published_config("qwen3-0.6b")
    tried = [item.change for item in suggest(cfg, shape, sizes, 1000, 1 << 60)]
    parts = [text for text in tried if text.startswith("grpo.gradient_accumulation_steps=")]
    assert parts == ["grpo.gradient_accumulation_steps=2"], "two micro-batches of four schemas on two shards"
    for change in tried:
        if not change.startswith("--mesh"):
            config(*settings, "model.max_positions=4096", change)


@pytest.mark.parametrize(("databases", "meshes"), [(8, ["1x8x1", "1x4x2", "1x2x4", "1x1x8"]), (2, ["1x2x4", "1x1x8"])])
def test_suggested_mesh_divides_the_sft_batch(databases: int, meshes: list[str]) -> None:
    cfg = config("sft.steps=9", f"sft.databases={databases}", "grpo.prompts=16")
    tried = suggest(cfg, published_config("qwen3-0.6b"), {"data": 2, "fsdp": 2, "tensor": 2}, 384, 1 << 62)
    assert [item.change.partition("=")[2] for item in tried if item.change.startswith("--mesh")] == meshes


def test_bytes_are_formatted_with_units() -> None:
    assert (format_bytes(3 << 29), format_bytes(5 << 20)) == ("1.5 GiB", "5.0 MiB")


def test_bfloat16_activations_halve_the_cache() -> None:
    wide = estimate(config(), MODEL, abstract_mesh(1, 1, 1), 100)
    narrow = estimate(config("model.compute_dtype=bfloat16"), MODEL, abstract_mesh(1, 1, 1), 100)
    assert (narrow.caches * 2, narrow.weights) == (wide.caches, wide.weights)


def test_batch_is_scored_only_for_missing_log_probabilities() -> None:
    """Two minibatches need old log-probabilities, PPO also old values; `rollout.exact` provides the first."""
    two, exact, ppo = "grpo.minibatches=2", "rollout.exact=true", "grpo.algorithm=ppo"
    cases = [(two,), (two, exact), (two, exact, ppo), (two, exact, "grpo.kl.coef=0.1")]
    assert [find_workload(config(*case), 100, 1).scoring_passes for case in cases] == [1, 0, 1, 1]


def test_gradient_traffic_is_float32_for_any_weight_dtype() -> None:
    """bfloat16 weights save two bytes per gathered weight, and nothing per gradient."""
    sizes, received = {"data": 1, "fsdp": 4, "tensor": 1}, []
    for dtype in ("bfloat16", "float32"):
        cfg = config(f"model.dtype={dtype}")
        work = find_workload(cfg, 100, 4)
        assert work.update is not None
        (update,) = [phase for phase in phases(cfg, MODEL, sizes, work) if phase.name == "update"]
        received.append(update.cost.link)
    again = update_logit_chunks(MODEL, work.update, sizes)
    table = MODEL.vocab_size * MODEL.d_model
    weights = 2 * MODEL.n_layers * layer_weights(MODEL) + (1 + 2 * again) * table
    # The gradient of a tied table is summed whole, twice the bytes of a shard: for the look-up, and for each piece.
    gradients = MODEL.n_layers * layer_weights(MODEL) + (2 + 2 * again) * table
    assert MODEL.tie_embeddings
    assert received[0] == pytest.approx(0.75 * (2 * weights + 4 * gradients))
    assert received[1] == pytest.approx(0.75 * (4 * weights + 4 * gradients))


def test_kept_logits_are_computed_once() -> None:
    """64 prompts with 8 answers of 1,024 tokens and a vocabulary of 512: 1 GiB of logits."""
    batch = ("grpo.prompts=64", "grpo.num_generations=8", "sampling.max_new_tokens=1024")
    activations, pieces = [], []
    for mib in (256, 1024, 2048):
        cfg, sizes = config(*batch, f"model.kept_logits_mib={mib}"), {"data": 1, "fsdp": 1, "tensor": 1}
        update = find_workload(cfg, 100, 1).update
        assert update is not None
        pieces.append(update_logit_chunks(MODEL, update, sizes))
        activations.append(estimate(cfg, MODEL, abstract_mesh(1, 1, 1), 100).activations)
    assert pieces == [4, 1, 1]
    # Logits, their exponentials and their gradient.
    assert activations[1] - activations[0] == 3 * (768 << 20)
    assert activations[2] == activations[1]


@pytest.mark.parametrize(
    ("gib", "setting", "kept", "pieces"), [(0, 0, 256, 4), (1, 0, 256, 4), (64, 0, 1024, 1), (64, 512, 512, 2)]
)
def test_free_memory_keeps_all_logits(gib: int, setting: int, kept: int, pieces: int) -> None:
    batch = ("grpo.prompts=64", "grpo.num_generations=8", "sampling.max_new_tokens=1024")
    cfg, mesh = config(*batch, f"model.kept_logits_mib={setting}"), abstract_mesh(1, 1, 1)
    model = PlannedModel(cfg.model, MODEL)
    section = memory.with_kept_logits(cfg.workload(100), model, mesh, gib << 30, fused=True)
    assert section.kept_logits_mib == kept
    update = find_workload(dataclasses.replace(cfg, model=section), 100, 1).update
    assert update is not None
    assert update_logit_chunks(MODEL, update, {"data": 1, "fsdp": 1, "tensor": 1}) == pieces


def test_schemas_run_once_for_the_questions_of_their_database() -> None:
    """Count the tree: a schema followed by four question suffixes, each followed by its answers."""
    cfg = config("grpo.prompts=8", "grpo.num_generations=4", "grpo.questions=4", "sampling.max_new_tokens=64")
    sizes, work = {"data": 1, "fsdp": 1, "tensor": 1}, find_workload(cfg, 128, 1)
    assert work.update is not None
    schema, prompt, answer, group = 96, work.update.prompt, work.update.answer, work.update.group
    once = with_schemas(work, schema)
    assert once.update is not None
    assert once.update.tokens == 2 * (schema + 4 * (prompt - schema + group * answer))
    logits = 2 * MODEL.d_model * MODEL.vocab_size * 4 * (prompt - schema)
    prompts = grouped_forward_flops(MODEL, 1, schema, 4, prompt - schema) - logits
    answers = 4 * (
        grouped_forward_flops(MODEL, 1, prompt, group, answer) - grouped_forward_flops(MODEL, 1, prompt, 0, answer)
    )
    apart, result = (
        {phase.name: phase.cost.flops for phase in phases(cfg, MODEL, sizes, item)} for item in (work, once)
    )
    assert result["update"] == pytest.approx(UPDATE_PASSES * 2 * (prompts + answers))
    assert result["update"] < apart["update"]
    assert result["decode"] == apart["decode"]
    alone = with_schemas(find_workload(config("grpo.prompts=8"), 128, 1), schema).update
    assert alone is not None
    assert alone.schema_repeats == 0


def test_packed_update_has_the_rows_of_first_fit() -> None:
    """A fifth of the answers fill a row, the others a quarter: eight answers take about three and a half rows."""
    cfg = config(
        "grpo.prompts=8",
        "grpo.num_generations=8",
        "grpo.minibatches=2",
        "grpo.gradient_accumulation_steps=2",
        "grpo.packing=true",
        "sampling.max_new_tokens=64",
    )
    work = find_workload(cfg, 100, 2)
    assert with_packing(work, None) is work
    update = with_packing(work, Lengths((64.0,))).update
    assert update is not None
    assert (update.packed_rows, update.part_rows, update.rows, update.shares) == (0, (), 8, ())
    result = with_packing(work, Lengths((16.0,) * 80 + (64.0,) * 20))
    update = result.update
    assert update is not None
    # Four prompts per minibatch; its first part has the two with the most rows.
    assert len(update.part_rows) == 4
    assert set(update.part_rows) <= set(row_counts(update.packed_rows))
    assert update.part_rows[0] >= update.part_rows[1]
    assert update.part_rows[2] >= update.part_rows[3]
    assert sum(update.shares) == 1
    assert update.tokens == 4 * (128 + update.rows * 64)
    alone = work._replace(update=work.update and work.update._replace(parts=1))
    item = with_packing(alone, Lengths((16.0,) * 80 + (64.0,) * 20)).update
    assert item is not None
    assert (item.part_rows, item.shares) == ((item.packed_rows,) * 2, ())
    sizes = {"data": 1, "fsdp": 2, "tensor": 1}
    apart, packed = (
        {phase.name: phase.cost.flops for phase in phases(cfg, MODEL, sizes, entry)} for entry in (work, result)
    )
    assert packed["decode"] == apart["decode"]
    for learned, rows in ((apart, 8.0), (packed, update.rows)):
        assert learned["update"] == update_flops(MODEL, 4, 128, rows, 64) / 2


def test_plan_packs_answers_if_attention_supports_it() -> None:
    shape, v5p = published_config("qwen2.5-coder-7b"), find_topology("v5p:4x4x2")
    sizes, lengths = mesh_sizes("1x8x4", 32), StepLengths(truncated_exponential(1000, 4096))
    cfg = load_config(
        TrainConfig, [f"configs/{name}.yaml" for name in ("arctic", "on/v5p_4x4x2")], ["grpo.packing=true"]
    )
    plan = make_plan(cfg, shape, v5p, sizes, 8192, lengths)
    before = make_plan(
        dataclasses.replace(cfg, grpo=dataclasses.replace(cfg.grpo, packing=False)), shape, v5p, sizes, 8192, lengths
    )
    chip = v5p.chip
    seconds, apart = ({phase.name: phase.seconds(chip) for phase in result.phases} for result in (plan, before))
    assert plan.work.update is not None
    assert plan.work.update.packed_rows == 8
    assert seconds["update"] < 0.4 * apart["update"]
    assert seconds["score"] < 0.4 * apart["score"]
    assert seconds["decode"] == apart["decode"]
    assert plan.memory == before.memory, "the memory depends on the lengths of answers"


def test_token_budget_reduces_memory_and_adds_passes() -> None:
    """Eight prompts of 128 tokens per shard, with eight rows of 64: 640 tokens each."""
    lines = ["grpo.prompts=16", "grpo.num_generations=8", "sampling.max_new_tokens=64"]

    def update(*more: str) -> Update:
        result = find_workload(config(*lines, *more), 100, 2).update
        assert result is not None
        return result

    def held(*more: str) -> int:
        return estimate(config(*lines, *more), MODEL, abstract_mesh(1, 2, 1), 100).activations

    whole, four, item = update(), update("grpo.max_tokens_per_device=2600"), update("grpo.max_tokens_per_device=640")
    assert (whole.passes, four.passes, item.passes) == (1, 2, 8)
    assert four.micro_batches_of() == four.micro_batches_of(minibatches=2) == (1, 2600, 2)
    assert held() > held("grpo.max_tokens_per_device=2600") > held("grpo.max_tokens_per_device=640")
    assert held("grpo.max_tokens_per_device=2600") == held("grpo.gradient_accumulation_steps=2")
    split = update("grpo.max_tokens_per_device=400")
    # Four rows at a time, so each prompt is run twice.
    assert (split.chunk_sizes(8), split.passes, split.prompt_repeats) == ((2, 4), 16, 1)
    assert split.tokens == 16 * (2 * 128 + 8 * 64)
    assert held("grpo.max_tokens_per_device=400") < held("grpo.max_tokens_per_device=640")
    with pytest.raises(InputError, match=r"grpo\.max_tokens_per_device=191: .* are 192: raise it"):
        update("grpo.max_tokens_per_device=191")
    with pytest.raises(InputError, match=r"replaces grpo\.gradient_accumulation_steps=2, which must be 1"):
        config("grpo.max_tokens_per_device=640", "grpo.gradient_accumulation_steps=2")
    zero = config(*lines, "grpo.max_tokens_per_device=640", "grpo.gradient_accumulation_steps=0")
    assert with_parts(zero.sft, zero.grpo, 2)[1].gradient_accumulation_steps == 1
    packed = with_packing(
        find_workload(config(*lines, "grpo.max_tokens_per_device=800"), 100, 2), Lengths((8.0,))
    ).update
    assert packed is not None
    # Eight answers of eight tokens fill one row of two: two prompts of at least 128 + 64 tokens at a time make four
    # passes.
    assert (packed.packed_rows, set(packed.part_rows), packed.chunk_sizes(1)) == (2, {1}, (8, 1))
    assert packed.passes == 2
