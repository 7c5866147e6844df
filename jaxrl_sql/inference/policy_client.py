"""A client of the policy: samples answers to questions from an engine, prompted and read as a recipe does.

Training, evaluation, `data filter` and `ask` all sample their answers here; what they do with them is theirs.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import ExitStack, contextmanager
from dataclasses import replace
from typing import Any, NamedTuple

import jax

from jaxrl_sql.config import (
    DataConfig,
    EvaluateSettings,
    RolloutConfig,
    SamplingConfig,
)
from jaxrl_sql.inference.compiling import hear_compiling
from jaxrl_sql.inference.ends import ends_of_generation
from jaxrl_sql.inference.policy_spec import PolicySpec
from jaxrl_sql.inference.program_cache import keep_programs
from jaxrl_sql.inference.questions import check_rows, prompts_of
from jaxrl_sql.inference.training_set import choose_shots
from jaxrl_sql.models.formats.checksums import refuse_damaged_weights
from jaxrl_sql.models.formats.hf import load_checkpoint, load_config, load_tokenizer
from jaxrl_sql.models.ops.rng import Purpose
from jaxrl_sql.parallel import mesh as meshes
from jaxrl_sql.parallel.rules import batch_ways
from jaxrl_sql.planning.chips import device_memory, known_chip
from jaxrl_sql.planning.layout import Machine, client_layout
from jaxrl_sql.planning.memory import PlannedModel, client_kv_budget, client_weights, matrix_dtype
from jaxrl_sql.planning.units import in_bytes
from jaxrl_sql.planning.workload import engine_config, rollout_grid
from jaxrl_sql.rollout import AnyEngine, Sample, SamplingParams, Turns
from jaxrl_sql.rollout.replicated import make_engine
from jaxrl_sql.rollout.stop_strings import STATEMENT_END
from jaxrl_sql.runtime.display import Display
from jaxrl_sql.text2sql.env.executor import Executor
from jaxrl_sql.text2sql.env.turns import Environment
from jaxrl_sql.text2sql.evals.records import Answered
from jaxrl_sql.text2sql.prompts.prompts import PromptStyle
from jaxrl_sql.text2sql.recipes import Recipe, find_recipe
from jaxrl_sql.text2sql.rewards.extract import ParsedResponse
from jaxrl_sql.types import OUT_OF_TURNS, Example, InputError, Prompt, Response


class EnvStates(dict[tuple[int, int], Environment]):
    """The environment's side of each answer, by prompt and sample: what was observed may not be worth learning from."""

    def kept(self, begin: Turns) -> Turns:
        """Return what `begin` makes, and keep it."""
        return lambda prompt, sample: self.setdefault((prompt, sample), begin(prompt, sample))

    def stop(self, prompt: int, sample: int) -> str:
        """Return the clock's bound that cut short what an answer observed, if one did."""
        side = self.get((prompt, sample))
        return side.stop if side else ""

    def ended(self, sample: Sample) -> Sample:
        """Return a sample with the finish reason OUT_OF_TURNS where its dialogue ended for that."""
        side = self.get((sample.prompt_index, sample.index))
        return replace(sample, finish_reason=OUT_OF_TURNS) if side and side.is_out_of_turns else sample


class PolicyClient(NamedTuple):
    """A policy that can be asked: its engine, the recipe and style of its prompts, and what runs its queries."""

    engine: AnyEngine
    recipe: Recipe
    style: PromptStyle
    executor: Executor

    def generate(
        self,
        examples: Sequence[Example],
        prompts: Sequence[Prompt],
        sampling: SamplingParams,
        number: int = 0,
        budget: int = 1,
        env_states: EnvStates | None = None,
        ahead: int | None = None,
        begun: Sequence[Sample] = (),
    ) -> Iterator[Sample]:
        """Yield `sampling.n` samples a prompt as they finish; `examples[i]` is the question of `prompts[i]`.

        `number` names the rollout: another number, other answers. With a `budget` above 1 a recipe of several turns has
        so many, and `env_states` keeps the environment's; what was sampled in vain has an `error`. `ahead` and `begun`
        are the engine's (`Engine.generate`).
        """
        begin = self._dialogues(examples, budget)
        if begin is None:
            return self.engine.generate(prompts, sampling, number, None, ahead, begun)
        states = EnvStates() if env_states is None else env_states
        return map(states.ended, self.engine.generate(prompts, sampling, number, states.kept(begin), ahead, begun))

    def reading(self, sample: Sample) -> ParsedResponse:
        """Return what is found in an answer."""
        return self.recipe.reading(response(sample), self.style)

    def stops(self, more: Sequence[str]) -> tuple[str, ...]:
        """Return what ends an answer or a turn: the recipe's strings, where answers have its form, and `more`.

        Answers of raw SQL end with their statement, where `more` has no strings.
        """
        if self.style.answers_raw_sql:
            return tuple(more) or (STATEMENT_END,)
        return (*self.recipe.stops, *more)

    def _dialogues(self, examples: Sequence[Example], budget: int) -> Turns | None:
        """Return the environment's side of answers of up to `budget` turns each; None for a single turn."""
        make = self.recipe.turns
        if budget == 1 or make is None:
            return None
        return lambda prompt, _sample: make(self.executor, examples[prompt], budget)


@contextmanager
def open_policy_client(
    policy: PolicySpec, executor: Executor, slots: int, purpose: Purpose, longest: int
) -> Iterator[PolicyClient]:
    """Open a policy's `model.checkpoint` to sample answers of up to `longest` tokens from, in `slots` decode slots.

    It lies on the mesh; its KV cache takes at most `rollout.memory` of a device. Raises InputError for a model or
    tokenizer that cannot be read or that do not fit each other, and before it is for weights that a device has no
    memory for.
    """
    model, data = policy.model, policy.data
    keep_programs(policy.compilation_cache)
    mesh = meshes.make_mesh(policy.mesh.data, policy.mesh.fsdp, policy.mesh.tensor)
    shape, have, device = load_config(model.checkpoint), device_memory(mesh), mesh.local_devices[0]
    planned = PlannedModel(model, shape)
    _check_memory(planned, policy.rollout, mesh)
    machine = Machine(device.platform, len(mesh.local_devices), have, known_chip(device))
    rollout = client_layout(policy.rollout, planned, mesh, machine)
    refuse_damaged_weights(model.checkpoint)
    with jax.set_mesh(mesh):
        with ThreadPoolExecutor(1) as beside:  # a large vocabulary takes as long to read as small weights
            reading = beside.submit(load_tokenizer, data.tokenizer.path or model.checkpoint)
            _, params = load_checkpoint(
                model.checkpoint,
                model.dtype,
                mesh,
                matrices=matrix_dtype(model.dtype, model.compute_dtype),
                by_layer=rollout_grid(rollout) is None,  # copies take the layers apart themselves
            )
            tokenizer = reading.result()
        check_rows(tokenizer, shape, f"model.checkpoint={model.checkpoint}")
        compute = None if model.compute_dtype == "same" else model.compute_dtype
        padded_to = data.max_prompt_tokens if policy.pad_to_max else 0
        sizes = engine_config(rollout, slots, padded_to, batch_ways(mesh.shape))
        ends = ends_of_generation(data, model.checkpoint, tokenizer)
        sizes = replace(sizes, purpose=purpose, compute_dtype=compute, attention="xla", budget=None, end_tokens=ends)
        budget = client_kv_budget(rollout, planned, mesh, sizes, longest, have)
        engine = make_engine(shape, params, tokenizer, replace(sizes, budget=budget), mesh, rollout_grid(rollout))
        yield PolicyClient(engine, find_recipe(policy.recipe), style_for(policy.recipe, data, tokenizer), executor)


def _check_memory(planned: PlannedModel, rollout: RolloutConfig, mesh: jax.sharding.Mesh) -> None:
    """Raise InputError, with what would fit, for weights that are larger than a device of the mesh."""
    model, have = planned.section, device_memory(mesh)
    narrow = planned._replace(section=replace(model, dtype="bfloat16"))
    need, half = (client_weights(weights, mesh, rollout_grid(rollout)) for weights in (planned, narrow))
    if not have or need <= have:
        return
    devices = f"{-(-need // have)} times as many devices (mesh.fsdp)"
    helps = f"model.dtype=bfloat16, which needs {in_bytes(half)}, or {devices}" if half <= have else devices
    kept = matrix_dtype(model.dtype, model.compute_dtype)
    raise InputError(
        f"memory: the weights of {model.checkpoint} need {in_bytes(need)} a device in {kept}, which has "
        f"{in_bytes(have)}: take {helps}, or a smaller model"
    )


def style_for(recipe_name: str, data: DataConfig, tokenizer: Any) -> PromptStyle:
    """Return the prompts' style, with what the tokenizer's template opens: answers are read as in training.

    Examples are shown as `data.shots` says. Raises InputError as `choose_shots` does.
    """
    recipe = find_recipe(recipe_name)
    return recipe.opened(recipe.style_for(data), tokenizer)._replace(shots=choose_shots(data))


def sampling_by(section: SamplingConfig, n: int, seed: int, stop: Sequence[str]) -> SamplingParams:
    """Return how `n` answers a prompt are sampled by a section's numbers."""
    return SamplingParams(
        temperature=section.temperature,
        top_k=section.top_k,
        top_p=section.top_p,
        min_p=section.min_p,
        repetition_penalty=section.repetition_penalty,
        stop=stop,
        max_new_tokens=section.max_new_tokens,
        max_total_tokens=section.max_total_tokens if section.turns > 1 else 0,
        n=n,
        seed=seed,
    )


def longest_of(section: SamplingConfig) -> int:
    """Return the tokens of the longest answer that a section's numbers allow, all of its turns together."""
    return sampling_by(section, n=1, seed=0, stop=()).longest


def served(sample: Sample) -> Sample:
    """Return a sample that is an answer; raises InputError for one that the engine could not serve."""
    if sample.error:
        raise InputError(f"sampling: {sample.error}")
    return sample


def response(sample: Sample) -> Response:
    """Return what an answer says: who wrote what, turn by turn, so that nothing in a text can pass for another's."""
    return tuple((turn.role, turn.text) for turn in sample.turns)


Tick = Callable[[int, int], None]
"""What is told how many answers of how many are there; it may raise to stop the rest."""

AskPolicy = Callable[[str, Sequence[Example], int, int, Tick], list[Answered]]
"""What samples answers: a set's name, some of its questions, the number of the run, that of the rollout, a tick."""


@contextmanager
def model_answers(
    policy: PolicySpec,
    cfg: EvaluateSettings,
    executor: Executor,
    sets: Mapping[str, Sequence[Example]],
    display: Display,
) -> Iterator[AskPolicy]:
    """Open the model and yield what samples its answers as the section `evaluate` says; prompts are made at once.

    Raises InputError where none fits, and for several turns of a recipe that has one.
    """
    most, tell = policy.data.max_prompt_tokens, display.note
    with ExitStack() as opened:
        opened.enter_context(hear_compiling(display.activity.compiled, display.activity.clock))
        with display.work(f"reading the weights of {policy.model.checkpoint}"):
            client = opened.enter_context(
                open_policy_client(policy, executor, cfg.max_num_seqs, Purpose.EVAL, longest_of(cfg.sampling))
            )
        check_turns(client.recipe, cfg.sampling.turns)
        prompts: dict[str, dict[str, Prompt]] = {}
        for name, examples in sets.items():
            made = prompts_of(name, examples, client.style, client.engine.tokenizer, most, display)
            prompts[name] = {prompt.uid: prompt for prompt in made.prompts}
            if made.skipped:
                tell(f"{name}: the {len(made.skipped)} prompts that are too long count as wrong")

        def generate(name: str, examples: Sequence[Example], run: int, number: int, tick: Tick) -> list[Answered]:
            sampling = sampling_by(cfg.sampling, cfg.samples, policy.seed + run, client.stops(cfg.sampling.stop))
            asked = [(example, prompts[name][example.uid]) for example in examples if example.uid in prompts[name]]
            made = answers(client, asked, sampling, number, cfg.sampling.turns, tick)
            _tell_faults(name, [(one.uid, said.fault) for (one, _), said in zip(asked, made, strict=True)], tell)
            answered = {one.uid: said for (one, _), said in zip(asked, made, strict=True)}
            long = Answered((), fault=f"prompt over {most} tokens")
            return [answered.get(one.uid, long) for one in examples]

        yield generate


def _tell_faults(name: str, faults: Sequence[tuple[str, str]], tell: Callable[[str], None]) -> None:
    """Report how many questions the engine could not serve, and why the first of them."""
    found = [(uid, fault) for uid, fault in faults if fault]
    if found:
        tell(f"{name}: {len(found)} questions are not asked and count as wrong: {found[0][1]} ({found[0][0]})")


def check_turns(recipe: Recipe, turns: int) -> None:
    """Refuse several turns of a recipe that has one."""
    if turns > 1 and recipe.turns is None:
        raise InputError(f"recipe {recipe.name} answers in one turn: evaluate.sampling.turns must be 1, not {turns}")


def answers(
    client: PolicyClient,
    asked: Sequence[tuple[Example, Prompt]],
    sampling: SamplingParams,
    number: int = 0,
    budget: int = 1,
    tick: Tick | None = None,
) -> list[Answered]:
    """Sample `sampling.n` answers to each question and wait for them all; what the engine could not serve says why."""
    if not asked:
        return []
    found: list[dict[int, Sample]] = [{} for _ in asked]
    faults: dict[int, str] = {}
    examples, prompts = [one for one, _ in asked], [prompt for _, prompt in asked]
    own = []
    for sample in client.generate(examples, prompts, sampling, number, budget):
        own.append(sample)
        if tick:
            tick(sum(not one.error for one in own), len(asked) * sampling.n)
    for sample in client.engine.gather(own):
        if sample.error:
            faults[sample.prompt_index] = sample.error
        else:
            found[sample.prompt_index][sample.index] = sample
    made = []
    for i, (prompt, samples) in enumerate(zip(prompts, found, strict=True)):
        if i in faults:
            made.append(Answered((), prompt=prompt.text, fault=faults[i]))
            continue
        ordered = [samples[g] for g in range(sampling.n)]
        sqls = tuple(client.reading(one).sql for one in ordered)
        tokens = sum(sum(one.written) for one in ordered)
        reasons = tuple(sample.finish_reason for sample in ordered)
        responses = tuple(map(response, ordered))
        made.append(Answered(sqls, responses, prompt.text, tokens=tokens, finish_reasons=reasons))
    return made
