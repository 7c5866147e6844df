"""Memory and work by formula, against numbers by hand and against what the run's own functions make."""

from __future__ import annotations

import dataclasses
from collections.abc import Mapping
from pathlib import Path

import jax
import pytest

from jaxrl_sql.config import TrainConfig, load_config
from jaxrl_sql.models import ModelConfig, count_params, init_params
from jaxrl_sql.models.flops import UPDATE_PASSES, grouped_forward_flops, layer_weights, update_flops
from jaxrl_sql.models.ops.micro_batches import row_counts
from jaxrl_sql.models.shapes import published_shape
from jaxrl_sql.parallel.rules import AnyMesh, batch_ways
from jaxrl_sql.planning import memory, plan, roofline, suggestions, workload
from jaxrl_sql.planning.chips import CHIPS, Chip, Topology, find_topology
from jaxrl_sql.planning.lengths import ALL_LONGEST, Lengths, StepLengths, between
from jaxrl_sql.planning.memory import MemoryEstimate, PlannedModel, abstract_mesh, params_here
from jaxrl_sql.planning.plan import Plan, mesh_sizes
from jaxrl_sql.planning.roofline import Cost, Phase
from jaxrl_sql.planning.suggestions import Suggestion
from jaxrl_sql.planning.units import in_bytes
from jaxrl_sql.planning.workload import Update, Workload, pieces_of_logits, with_packing, with_parts, with_schemas
from jaxrl_sql.rollout import Engine, EngineConfig, SamplingParams
from jaxrl_sql.rollout.sampling import GenerationRequest
from jaxrl_sql.types import InputError, Prompt

SMALL = Path(__file__).parents[2] / "small.yaml"

MODEL = ModelConfig("qwen3", 512, 32, 2, 4, 2, 8, 48, 1e4, 1e-6, True, False, True, 1024)


class Letters:
    """A tokenizer of which only its end is asked."""

    eos_token = "t0"  # noqa: S105 (a token's name)

    def get_vocab(self) -> dict[str, int]:
        return {f"t{i}": i for i in range(512)}

    def decode(self, _: object, **__: object) -> str:
        return ""


def config(*overrides: str) -> TrainConfig:
    return load_config(TrainConfig, SMALL, overrides)


def find_workload(cfg: TrainConfig, longest: int, ways: int) -> Workload:
    return workload.find_workload(cfg.model, cfg.workload(longest), ways)


def estimate(cfg: TrainConfig, shape: ModelConfig, mesh: AnyMesh, longest: int) -> MemoryEstimate:
    work = find_workload(cfg, longest, batch_ways(mesh.shape))
    return memory.estimate(PlannedModel(cfg.model, shape), mesh, work)


def phases(
    cfg: TrainConfig, shape: ModelConfig, sizes: Mapping[str, int], work: Workload, lengths: StepLengths = ALL_LONGEST
) -> list[Phase]:
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


def test_a_device_holds_its_share_of_the_weights() -> None:
    all_of_it = count_params(MODEL)
    assert params_here(MODEL, abstract_mesh(1, 1, 1)) == all_of_it
    assert params_here(MODEL, abstract_mesh(4, 1, 1)) == all_of_it
    # Over fsdp everything that has a width, so not the biases of 4 + 2 + 2 heads; over tensor all but the norms.
    biases, norms = 2 * (4 + 2 + 2) * 8, 2 * 2 * 32 + 32
    assert params_here(MODEL, abstract_mesh(1, 4, 1)) == (all_of_it - biases) // 4 + biases
    assert params_here(MODEL, abstract_mesh(1, 1, 2)) == (all_of_it - norms) // 2 + norms


def test_caches_are_the_pages_that_an_engine_makes_for_the_longest() -> None:
    cfg = config(
        "rollout.max_num_seqs=4",
        "grpo.prompts=4",
        "grpo.num_generations=4",
        "sampling.max_new_tokens=70",
        "validation.max_num_seqs=2",
    )
    load = find_workload(cfg, 100, 1).rollout
    assert load is not None
    # 4 prompts of 128 (the bucket of 100), 2 pages of 64 each; 4 rows of 96, 3 pages of 32 each; pools are buckets.
    assert load.sizes[-3:] == (8, 12, 512)
    tokens = 64 * (8 + 512) + 32 * 12
    assert estimate(cfg, MODEL, abstract_mesh(1, 1, 1), 100).caches == tokens * 2 * 2 * 2 * 8 * 4


def test_the_plan_follows_the_engines_defaults(monkeypatch: pytest.MonkeyPatch) -> None:
    """The sizes are the engine's own: other defaults there are other numbers here."""
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


def test_an_engine_that_begins_at_its_largest_has_those_pages() -> None:
    """The plan's pools are those of `run.pad_to_max`, which an engine makes at its first call."""

    cfg = config("rollout.max_num_seqs=4", "grpo.prompts=4", "grpo.num_generations=4", "sampling.max_new_tokens=40")
    load = find_workload(cfg, 100, 1).rollout
    assert load is not None
    sizes = EngineConfig(max_num_seqs=4, max_prompt_bucket=100)
    engine = Engine(MODEL, init_params(MODEL, jax.random.key(0)), Letters(), sizes)
    prompts = [Prompt(str(i), (1 + i,) * 100, "") for i in range(4)]
    engine.begin(GenerationRequest(prompts, [SamplingParams(max_new_tokens=40, n=4)] * 4, 0, None))
    pools = engine.runner.prompt_pool, engine.runner.completion_pool
    assert [pool and pool.num_blocks for pool in pools] == [load.sizes.prompt_blocks, load.sizes.completion_blocks]


def test_fewer_bytes_with_each_suggestion() -> None:
    base = ("model.dtype=bfloat16", "grpo.prompts=64", "sampling.max_new_tokens=1024", "model.max_positions=4096")
    mesh, shape = abstract_mesh(1, 4, 1), published_shape("qwen3-4b")
    plain = estimate(config(*base), shape, mesh, 1000).total
    for change in ("grpo.gradient_accumulation_steps=4", "model.remat=full", "model.lora.rank=16"):
        assert estimate(config(*base, change), shape, mesh, 1000).total < plain, change


def test_of_two_phases_the_larger_optimizer_and_the_larger_copy_count() -> None:
    one, held = abstract_mesh(1, 1, 1), count_params(MODEL)
    both = ("sft.steps=2", "grpo.steps=2", "sft.optim.moments=float32", "grpo.optim.moments=bfloat16")
    assert estimate(config(*both), MODEL, one, 100).optimizer == held * 8
    assert estimate(config(*both, "sft.optim.kind=adafactor"), MODEL, one, 100).optimizer == held * 4
    assert estimate(config(*both, "sft.steps=0"), MODEL, one, 100).optimizer == held * 4
    taught = (*both, "grpo.kl.coef=0", "sft.held_out=0.1", "sft.eval_every=1")
    assert estimate(config(*taught), MODEL, one, 100).reference == 0
    assert estimate(config(*taught, "sft.patience=2"), MODEL, one, 100).reference == held * 4


def test_moments_are_suggested_of_each_phase_that_keeps_wide_ones() -> None:
    shape, sizes = published_shape("qwen3-4b"), {"data": 1, "fsdp": 4, "tensor": 1}
    cfg = config("model.dtype=bfloat16", "sft.steps=2", "grpo.steps=2", "model.max_positions=1024")
    plain, held = estimate(cfg, shape, abstract_mesh(**sizes), 100).total, params_here(shape, abstract_mesh(**sizes))
    found = {one.change: one.total for one in suggest(cfg, shape, sizes, 100, plain - 1)}
    assert found["grpo.optim.moments=bfloat16 sft.optim.moments=bfloat16"] == plain - 4 * held
    cfg = config("model.dtype=bfloat16", "sft.steps=2", "grpo.steps=0", "model.max_positions=1024")
    plain = estimate(cfg, shape, abstract_mesh(**sizes), 100).total
    assert "sft.optim.moments=bfloat16" in {one.change for one in suggest(cfg, shape, sizes, 100, plain - 1)}


def test_suggestions_fit_or_say_that_nothing_does() -> None:
    cfg = config("model.dtype=bfloat16", "grpo.prompts=64", "sampling.max_new_tokens=1024", "model.max_positions=4096")
    sizes, shape = {"data": 1, "fsdp": 4, "tensor": 1}, published_shape("qwen3-4b")
    have = CHIPS["v5p"].memory
    found = suggest(cfg, shape, sizes, 1000, have)
    assert found
    assert all(one.total <= have for one in found)
    (last,) = suggest(cfg, shape, sizes, 1000, 1 << 20)
    assert last.total > 1 << 20
    assert "model.remat=full" in last.change


def test_suggestions_are_added_up_on_other_meshes_too_and_the_harshest_comes_last() -> None:
    """A 4B with Think2SQL's lengths fits 16 v5e without adapters: its prompts in parts, its heads over eight."""
    cfg = load_config(TrainConfig, "configs/think2sql.yaml")
    shape, have = published_shape("qwen3-4b"), CHIPS["v5e"].memory
    found = {
        one.change.partition(" ")[0]: one
        for one in suggest(cfg, shape, {"data": 1, "fsdp": 16, "tensor": 1}, 8192, have)
    }
    wide = found["--mesh=1x2x8"]
    assert wide.total <= have
    assert "grpo.gradient_accumulation_steps=" in wide.change
    assert "lora" not in wide.change
    assert all(one.total <= have for one in found.values())


def test_a_step_of_the_published_7b_on_32_chips_by_hand() -> None:
    cfg = load_config(TrainConfig, "configs/arctic.yaml", ["grpo.gradient_accumulation_steps=4"])
    shape = published_shape("qwen2.5-coder-7b")
    sizes = {"data": 1, "fsdp": 32, "tensor": 1}
    found = estimate(cfg, shape, abstract_mesh(**sizes), 8192)
    # Two bytes a weight, two moments of two bytes, over 32 chips; norms' and biases' shares are below a thousandth.
    assert found.weights == pytest.approx(2 * 7.6156e9 / 32, rel=2e-3)
    assert found.optimizer == pytest.approx(4 * 7.6156e9 / 32, rel=2e-3)
    # 16,384 pages of 64 of prompts, 512 kept, 65,536 of 32 of rows; 57,344 bytes a token.
    assert found.caches == (16_896 * 64 + 65_536 * 32) * 57_344 // 32
    work = find_workload(cfg, 8192, 32)
    made = {phase.name: phase for phase in phases(cfg, shape, sizes, work, StepLengths(between(1000, 4096)))}
    # A prompt's chunk on each chip, eight chunks a prompt, and 256 prompts on 32 chips.
    assert work.rollout is not None
    assert work.rollout.prefill_shape == (32, 1024)
    assert made["prefill"].runs == 8 * 256 / 32
    assert made["prefill"].cost.flops == pytest.approx(2 * (6.53e9 + 28 * 28 * 128 * 8192) * 1024, rel=0.01)
    # 6.53e9 weights of the layers for 73,728 tokens a group and 5.45e8 to logits for 65,536 of them, forward and back
    # and forward again; attention beside it.
    products = 2 * (6.53e9 * 73_728 + 5.45e8 * 65_536) * 128 * 4 / 32
    pairs = 8192**2 / 2 + 16 * (4096 * 8192 + 4096**2 / 2)
    attention = 2 * 2 * 28 * 28 * 128 * pairs * 128 * 4 / 32
    assert made["update"].cost.flops == pytest.approx(products + attention, rel=0.01)
    assert made["update"].runs == 2
    # Each slot has eight answers in the mean; the longest chain is a few longest answers more.
    assert 8 * 1000 < made["decode"].runs < 8 * 1000 + 4096
    assert [phase.runs for phase in phases(cfg, shape, sizes, work) if phase.name == "decode"] == [8 * 4096]
    # Each decode step gathers all weights but the piece that is there.
    assert made["decode"].cost.link > 2 * 7.07e9 * 31 / 32


def test_parts_that_are_left_to_be_found_leave_each_shard_a_prompt() -> None:
    def parts(ways: int, *more: str) -> tuple[int, int]:
        zero = "grpo.gradient_accumulation_steps=0"
        cfg = config("grpo.prompts=32", "grpo.minibatches=2", "sft.databases=8", zero, *more)
        sft, grpo = with_parts(cfg.sft, cfg.grpo, ways)
        return sft.gradient_accumulation_steps, grpo.gradient_accumulation_steps

    assert parts(4, "sft.gradient_accumulation_steps=0") == (2, 4)
    assert parts(4)[0] == 1
    assert parts(16)[1] == 1


def test_a_supervised_run_by_epochs_is_planned_as_one_by_steps() -> None:
    asked = ("grpo.steps=0", "sft.databases=16", "sft.questions=2", "sft.max_completion_tokens=32")
    shape, topology = published_shape("qwen3-0.6b"), find_topology("h100:1")
    by_steps, by_epochs, none = (
        make_plan(config(*asked, *more), shape, topology, mesh_sizes("1x1x1", 1), 384)
        for more in (["sft.steps=9"], ["sft.epochs=1"], [])
    )
    assert by_epochs.memory == by_steps.memory
    assert by_epochs.memory.optimizer > none.memory.optimizer == 0
    assert [phase.name for phase in by_epochs.phases] == ["update"]
    assert by_epochs.tokens == 16 * 2 * 32
    taught, sizes = config(*asked, "sft.epochs=1"), {"data": 1, "fsdp": 1, "tensor": 1}
    have = estimate(taught, shape, abstract_mesh(**sizes), 384).total
    helping = suggest(taught, shape, sizes, 384, have - 1)
    assert helping[0].change == "sft.gradient_accumulation_steps=2"
    with pytest.raises(InputError, match=r"mesh: sft\.databases=16 are not divisible by data x fsdp = 32"):
        make_plan(config(*asked, "sft.steps=9"), shape, find_topology("h100:32"), mesh_sizes("1x32x1", 32), 384)


def test_a_phase_takes_as_long_as_its_slowest_resource() -> None:
    chip = Chip(0, 100.0, 10.0, 1.0, 0, "")
    cost = Cost(200.0, 30.0, 2.5)
    assert cost.bounds(chip) == {"compute": 2.0, "memory": 3.0, "links": 2.5}
    assert (cost.seconds(chip), cost.bound_by(chip)) == (3.0, "memory")


def test_a_plan_that_does_not_fit_says_by_how_much_and_what_helps() -> None:
    cfg = load_config(TrainConfig, "configs/arctic.yaml", [])
    shape, topology = published_shape("qwen2.5-coder-7b"), find_topology("v5p:4x4x2")
    plan = make_plan(cfg, shape, topology, mesh_sizes("1x32x1", 32), 8192)
    assert not plan.fits
    assert plan.total > topology.chip.memory
    assert "grpo.gradient_accumulation_steps=4" in [one.change for one in plan.suggestions]
    better = load_config(TrainConfig, "configs/arctic.yaml", ["grpo.gradient_accumulation_steps=4"])
    assert make_plan(better, shape, topology, mesh_sizes("1x32x1", 32), 8192).fits


@pytest.mark.parametrize(
    ("name", "chips", "kind"), [("v5e:4x8", 32, "tpu"), ("v5p:4x4x4", 64, "tpu"), ("h100:8", 8, "gpu")]
)
def test_a_topology_names_its_chips(name: str, chips: int, kind: str) -> None:
    found = find_topology(name)
    assert (found.chips, found.platform) == (chips, kind)


@pytest.mark.parametrize("name", ["v5x:2x2", "v5e", "v5e:2", "v5p:4x4", "v5e:0x4", "h100:2x2", "v5e:axb"])
def test_another_topology_is_refused_with_those_there_are(name: str) -> None:
    with pytest.raises(InputError, match=r"known are v5e:2x2, .*cpu"):
        find_topology(name)


@pytest.mark.parametrize("text", ["1x3x1", "4", "1x1x-2", "-1x-1x1", "3x-1x1", "1x4x1x1", "axbxc"])
def test_a_mesh_that_does_not_make_the_chips_is_refused(text: str) -> None:
    with pytest.raises(InputError, match=f"--mesh {text}"):
        mesh_sizes(text, 4)


def test_a_mesh_may_leave_one_axis_for_the_rest() -> None:
    assert mesh_sizes("1x-1x2", 8) == {"data": 1, "fsdp": 4, "tensor": 2}


def test_a_batch_that_the_mesh_does_not_divide_is_refused() -> None:
    with pytest.raises(InputError, match="12 prompts of an update"):
        make_plan(config("grpo.prompts=12"), MODEL, find_topology("v5e:4x2"), mesh_sizes("1x8x1", 8), 100)
    of_schemas = config("grpo.prompts=16", "grpo.questions=4")
    make_plan(of_schemas, MODEL, find_topology("v5e:2x2"), mesh_sizes("1x4x1", 4), 100)
    with pytest.raises(InputError, match=r"16 prompts .* by grpo\.questions=4\) are not divisible by data x fsdp = 8"):
        make_plan(of_schemas, MODEL, find_topology("v5e:4x2"), mesh_sizes("1x8x1", 8), 100)


def test_what_is_suggested_keeps_the_questions_of_a_schema_together() -> None:
    asked = ("grpo.prompts=16", "grpo.questions=4", "grpo.num_generations=16", "sampling.max_new_tokens=1024")
    cfg, sizes = config(*asked, "model.max_positions=4096"), {"data": 1, "fsdp": 2, "tensor": 1}
    shape = published_shape("qwen3-0.6b")
    tried = [one.change for one in suggest(cfg, shape, sizes, 1000, 1 << 60)]
    parts = [words for words in tried if words.startswith("grpo.gradient_accumulation_steps=")]
    assert parts == ["grpo.gradient_accumulation_steps=2"], "of four schemas, which two shards divide"
    for words in tried:
        if not words.startswith("--mesh"):
            config(*asked, "model.max_positions=4096", words)


@pytest.mark.parametrize(("databases", "meshes"), [(8, ["1x8x1", "1x4x2", "1x2x4", "1x1x8"]), (2, ["1x2x4", "1x1x8"])])
def test_a_mesh_that_is_suggested_divides_what_is_taught(databases: int, meshes: list[str]) -> None:
    cfg = config("sft.steps=9", f"sft.databases={databases}", "grpo.prompts=16")
    tried = suggest(cfg, published_shape("qwen3-0.6b"), {"data": 2, "fsdp": 2, "tensor": 2}, 384, 1 << 62)
    assert [one.change.partition("=")[2] for one in tried if one.change.startswith("--mesh")] == meshes


def test_bytes_as_people_read_them() -> None:
    assert (in_bytes(3 << 29), in_bytes(5 << 20)) == ("1.5 GiB", "5.0 MiB")


def test_activations_of_half_the_width_keep_keys_of_half_the_width() -> None:
    wide = estimate(config(), MODEL, abstract_mesh(1, 1, 1), 100)
    narrow = estimate(config("model.compute_dtype=bfloat16"), MODEL, abstract_mesh(1, 1, 1), 100)
    assert (narrow.caches * 2, narrow.weights) == (wide.caches, wide.weights)


def test_a_batch_is_scored_for_what_nobody_brings() -> None:
    """Two minibatches compare with the old policy's, PPO with old values too; `rollout.exact` brings the first."""
    two, exact, ppo = "grpo.minibatches=2", "rollout.exact=true", "grpo.algorithm=ppo"
    cases = [(two,), (two, exact), (two, exact, ppo), (two, exact, "grpo.kl.coef=0.1")]
    assert [find_workload(config(*case), 100, 1).scored for case in cases] == [1, 0, 1, 1]


def test_gradients_cross_the_links_in_float32_whatever_the_weights_are_kept_in() -> None:
    """What weights in bfloat16 save is two bytes of each weight that comes together, and none of a gradient."""
    sizes, received = {"data": 1, "fsdp": 4, "tensor": 1}, []
    for dtype in ("bfloat16", "float32"):
        cfg = config(f"model.dtype={dtype}")
        work = find_workload(cfg, 100, 4)
        assert work.update is not None
        (update,) = [one for one in phases(cfg, MODEL, sizes, work) if one.name == "update"]
        received.append(update.cost.link)
    again = pieces_of_logits(MODEL, work.update, sizes)
    table = MODEL.vocab_size * MODEL.d_model
    weights = 2 * MODEL.n_layers * layer_weights(MODEL) + (1 + 2 * again) * table
    # A tied table is added up whole, which is twice what a piece a chip takes: by the look-up, and in each piece.
    gradients = MODEL.n_layers * layer_weights(MODEL) + (2 + 2 * again) * table
    assert MODEL.tie_embeddings
    assert received[0] == pytest.approx(0.75 * (2 * weights + 4 * gradients))
    assert received[1] == pytest.approx(0.75 * (4 * weights + 4 * gradients))


def test_logits_that_a_device_may_keep_are_made_once() -> None:
    """64 prompts of 8 answers of 1,024 tokens of a vocabulary of 512: 1 GiB of logits."""
    batch = ("grpo.prompts=64", "grpo.num_generations=8", "sampling.max_new_tokens=1024")
    activations, pieces = [], []
    for kept in (256, 1024, 2048):
        cfg, sizes = config(*batch, f"model.kept_logits_mib={kept}"), {"data": 1, "fsdp": 1, "tensor": 1}
        update = find_workload(cfg, 100, 1).update
        assert update is not None
        pieces.append(pieces_of_logits(MODEL, update, sizes))
        activations.append(estimate(cfg, MODEL, abstract_mesh(1, 1, 1), 100).activations)
    assert pieces == [4, 1, 1]
    # The logits, their exponentials and their gradient.
    assert activations[1] - activations[0] == 3 * (768 << 20)
    assert activations[2] == activations[1]


def test_schemas_run_once_for_the_questions_of_their_database() -> None:
    """As the tree itself counts: a schema with four tails after it, and after each its question's answers."""
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
    apart, found = ({phase.name: phase.cost.flops for phase in phases(cfg, MODEL, sizes, one)} for one in (work, once))
    assert found["update"] == pytest.approx(UPDATE_PASSES * 2 * (prompts + answers))
    assert found["update"] < apart["update"]
    assert found["decode"] == apart["decode"]
    alone = with_schemas(find_workload(config("grpo.prompts=8"), 128, 1), schema).update
    assert alone is not None
    assert alone.repeats == 0


def test_a_packed_update_runs_the_rows_that_first_fit_gives() -> None:
    """A fifth of the answers fill a row and the others a quarter of one: of eight, about three and a half."""
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
    found = with_packing(work, Lengths((16.0,) * 80 + (64.0,) * 20))
    update = found.update
    assert update is not None
    # Four prompts a minibatch, the two of most rows in its first part.
    assert len(update.part_rows) == 4
    assert set(update.part_rows) <= set(row_counts(update.packed_rows))
    assert update.part_rows[0] >= update.part_rows[1]
    assert update.part_rows[2] >= update.part_rows[3]
    assert sum(update.shares) == 1
    assert update.tokens == 4 * (128 + update.rows * 64)
    alone = work._replace(update=work.update and work.update._replace(parts=1))
    one = with_packing(alone, Lengths((16.0,) * 80 + (64.0,) * 20)).update
    assert one is not None
    assert (one.part_rows, one.shares) == ((one.packed_rows,) * 2, ())
    sizes = {"data": 1, "fsdp": 2, "tensor": 1}
    apart, packed = (
        {phase.name: phase.cost.flops for phase in phases(cfg, MODEL, sizes, one)} for one in (work, found)
    )
    assert packed["decode"] == apart["decode"]
    for learned, rows in ((apart, 8.0), (packed, update.rows)):
        assert learned["update"] == update_flops(MODEL, 4, 128, rows, 64) / 2


def test_a_plan_packs_answers_where_attention_can() -> None:
    shape, v5p = published_shape("qwen2.5-coder-7b"), find_topology("v5p:4x4x2")
    sizes, lengths = mesh_sizes("1x8x4", 32), StepLengths(between(1000, 4096))
    cfg = load_config(
        TrainConfig, [f"configs/{name}.yaml" for name in ("arctic", "on/v5p_4x4x2")], ["grpo.packing=true"]
    )
    plan = make_plan(cfg, shape, v5p, sizes, 8192, lengths)
    before = make_plan(
        dataclasses.replace(cfg, grpo=dataclasses.replace(cfg.grpo, packing=False)), shape, v5p, sizes, 8192, lengths
    )
    chip = v5p.chip
    seconds, apart = ({one.name: one.seconds(chip) for one in found.phases} for found in (plan, before))
    assert plan.work.update is not None
    assert plan.work.update.packed_rows == 8
    assert seconds["update"] < 0.4 * apart["update"]
    assert seconds["score"] < 0.4 * apart["score"]
    assert seconds["decode"] == apart["decode"]
    assert plan.memory == before.memory, "room is kept for answers that are all of the longest"


def test_a_budget_of_tokens_holds_less_and_runs_more_often() -> None:
    """Eight prompts a shard of 128 tokens, with eight rows of 64: 640 tokens each."""
    lines = ["grpo.prompts=16", "grpo.num_generations=8", "sampling.max_new_tokens=64"]

    def update(*more: str) -> Update:
        found = find_workload(config(*lines, *more), 100, 2).update
        assert found is not None
        return found

    def held(*more: str) -> int:
        return estimate(config(*lines, *more), MODEL, abstract_mesh(1, 2, 1), 100).activations

    whole, four, one = update(), update("grpo.max_tokens_per_device=2600"), update("grpo.max_tokens_per_device=640")
    assert (whole.passes, four.passes, one.passes) == (1, 2, 8)
    assert four.cut() == four.cut(minibatches=2) == (1, 2600, 2)
    assert held() > held("grpo.max_tokens_per_device=2600") > held("grpo.max_tokens_per_device=640")
    assert held("grpo.max_tokens_per_device=2600") == held("grpo.gradient_accumulation_steps=2")
    split = update("grpo.max_tokens_per_device=400")
    # Four rows at a time, so each prompt runs twice.
    assert (split.at_once(8), split.passes, split.again) == ((2, 4), 16, 1)
    assert split.tokens == 16 * (2 * 128 + 8 * 64)
    assert held("grpo.max_tokens_per_device=400") < held("grpo.max_tokens_per_device=640")
    with pytest.raises(InputError, match=r"grpo\.max_tokens_per_device=191: .* are 192: allow as many"):
        update("grpo.max_tokens_per_device=191")
    with pytest.raises(InputError, match=r"leave grpo\.gradient_accumulation_steps=2 at 1"):
        config("grpo.max_tokens_per_device=640", "grpo.gradient_accumulation_steps=2")
    zero = config(*lines, "grpo.max_tokens_per_device=640", "grpo.gradient_accumulation_steps=0")
    assert with_parts(zero.sft, zero.grpo, 2)[1].gradient_accumulation_steps == 1
    packed = with_packing(
        find_workload(config(*lines, "grpo.max_tokens_per_device=800"), 100, 2), Lengths((8.0,))
    ).update
    assert packed is not None
    # Eight answers of eight tokens fill one row of two: two prompts of 128 + 64 or more tokens at a time are four.
    assert (packed.packed_rows, set(packed.part_rows), packed.at_once(1)) == (2, {1}, (8, 1))
    assert packed.passes == 2
