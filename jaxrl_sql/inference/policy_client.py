"""A client of the policy: sample answers to questions from a rollout engine, with a recipe's prompts and parsing.

A recipe is the prompt, the parsing and the reward of a published system. Training, evaluation, `data filter` and `ask`
all sample their answers with this client.
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
from jaxrl_sql.inference.compiling import record_compilations
from jaxrl_sql.inference.ends import ends_of_generation
from jaxrl_sql.inference.policy_spec import PolicySpec
from jaxrl_sql.inference.program_cache import keep_programs
from jaxrl_sql.inference.prompt_lengths import PromptShortener
from jaxrl_sql.inference.questions import check_vocab_size, make_prompt_set
from jaxrl_sql.inference.training_set import choose_shots
from jaxrl_sql.models.formats.checksums import refuse_damaged_weights
from jaxrl_sql.models.formats.hf import count_tensors, load_checkpoint, load_config, load_tokenizer
from jaxrl_sql.models.ops.rng import Purpose
from jaxrl_sql.parallel import mesh as meshes
from jaxrl_sql.parallel.rules import num_batch_shards
from jaxrl_sql.planning.chips import device_memory, find_chip
from jaxrl_sql.planning.layout import Machine, client_layout
from jaxrl_sql.planning.memory import PlannedModel, client_kv_budget, inference_weights, matrix_dtype
from jaxrl_sql.planning.units import format_bytes
from jaxrl_sql.planning.workload import engine_config, rollout_grid
from jaxrl_sql.rollout import AnyEngine, EnvironmentFactory, Sample, SamplingParams
from jaxrl_sql.rollout.replicated import make_engine
from jaxrl_sql.rollout.stop_strings import STATEMENT_END
from jaxrl_sql.runtime.display import Display
from jaxrl_sql.runtime.progress import ProgressCallback, quantity
from jaxrl_sql.text2sql.env.executor import Executor
from jaxrl_sql.text2sql.env.turns import Environment
from jaxrl_sql.text2sql.evals.records import QuestionAnswers
from jaxrl_sql.text2sql.prompts.styles import PromptStyle
from jaxrl_sql.text2sql.recipes import Recipe, find_recipe
from jaxrl_sql.text2sql.rewards.extract import ParsedResponse
from jaxrl_sql.types import OUT_OF_TURNS, Example, InputError, Prompt, Response


class EnvStates(dict[tuple[int, int], Environment]):
    """The environments of answers by (prompt, sample), for checks of their observations after sampling."""

    def store_environments(self, make_environment: EnvironmentFactory) -> EnvironmentFactory:
        """Return a function that makes an answer's environment and stores it; further calls return the stored one."""
        return lambda prompt, sample: self.setdefault((prompt, sample), make_environment(prompt, sample))

    def stop(self, prompt: int, sample: int) -> str:
        """Return the time limit or error that invalidated an answer's observations, or ""."""
        environment = self.get((prompt, sample))
        return environment.stop if environment else ""

    def with_finish_reason(self, sample: Sample) -> Sample:
        """Return a sample, with the finish reason OUT_OF_TURNS if its dialogue had no turns left."""
        environment = self.get((sample.prompt_index, sample.index))
        return replace(sample, finish_reason=OUT_OF_TURNS) if environment and environment.is_out_of_turns else sample


class PolicyClient(NamedTuple):
    """A policy for sampling: its engine, the recipe and the style of its prompts, and the executor of its queries.

    A style turns a question into a prompt.
    """

    engine: AnyEngine
    recipe: Recipe
    style: PromptStyle
    executor: Executor

    def generate(
        self,
        examples: Sequence[Example],
        prompts: Sequence[Prompt],
        sampling: SamplingParams,
        rollout_number: int = 0,
        max_turns: int = 1,
        env_states: EnvStates | None = None,
        ahead: int | None = None,
        carried: Sequence[Sample] = (),
    ) -> Iterator[Sample]:
        """Yield `sampling.n` samples per prompt as they finish; `examples[i]` is the question of `prompts[i]`.

        `rollout_number` is that of the call; it determines the random numbers together with the seed. With `max_turns`
        above 1, answers of a multi-turn recipe have up to `max_turns` turns, and `env_states` stores their
        environments. Samples that failed have an `error`. Prompts from index `ahead` on already belong to the next
        rollout, and `carried` are unfinished samples of the previous one, see `Engine.generate`.
        """
        make_environment = self._make_environments(examples, max_turns)
        if make_environment is None:
            return self.engine.generate(prompts, sampling, rollout_number, None, ahead, carried)
        states = EnvStates() if env_states is None else env_states
        return map(
            states.with_finish_reason,
            self.engine.generate(
                prompts, sampling, rollout_number, states.store_environments(make_environment), ahead, carried
            ),
        )

    def parse(self, sample: Sample, example: Example) -> ParsedResponse:
        """Return the parsed answer of a sample to a question."""
        return self.recipe.parse(response(sample), self.style, self.style.tag_of(example))

    def stops(self, additional: Sequence[str]) -> tuple[str, ...]:
        """Return the stop strings of an answer or a turn: those of the recipe, and `additional` ones.

        If the style asks for SQL without the recipe's tags, an answer ends with its statement, or at an
        `additional` stop string if there are any.
        """
        if self.style.answers_raw_sql:
            return tuple(additional) or (STATEMENT_END,)
        return (*self.recipe.stops, *additional)

    def _make_environments(self, examples: Sequence[Example], max_turns: int) -> EnvironmentFactory | None:
        """Return a function that makes environments of up to `max_turns` turns; None for a single turn."""
        make = self.recipe.turns
        if max_turns == 1 or make is None:
            return None
        return lambda prompt, _sample: make(self.executor, examples[prompt], max_turns)


@contextmanager
def open_policy_client(
    policy: PolicySpec,
    executor: Executor,
    slots: int,
    purpose: Purpose,
    longest: int,
    on_progress: ProgressCallback = lambda _: None,
) -> Iterator[PolicyClient]:
    """Open a policy's `model.checkpoint` for answers of up to `longest` tokens.

    `slots` is the number of answers that are decoded at the same time. `purpose` separates the random numbers of this
    client from those of others with the same seed. The weights are on the mesh, and the KV cache takes at most the
    share `rollout.memory` of a device's memory. `on_progress` gets the number of tensors read. Raises InputError for a
    model or tokenizer that cannot be read or do not match, and for weights that do not fit into a device's memory.
    """
    model, data = policy.model, policy.data
    keep_programs(policy.compilation_cache)
    mesh = meshes.make_mesh(policy.mesh.data, policy.mesh.fsdp, policy.mesh.tensor)
    model_config, device_bytes, device = load_config(model.checkpoint), device_memory(mesh), mesh.local_devices[0]
    planned = PlannedModel(model, model_config)
    _check_memory(planned, policy.rollout, mesh)
    machine = Machine(device.platform, len(mesh.local_devices), device_bytes, find_chip(device))
    rollout = client_layout(policy.rollout, planned, mesh, machine)
    refuse_damaged_weights(model.checkpoint)
    with jax.set_mesh(mesh):
        with ThreadPoolExecutor(1) as pool:  # concurrently: a large vocabulary takes as long to read as small weights
            tokenizer_job = pool.submit(load_tokenizer, data.tokenizer.path or model.checkpoint)
            _, params = load_checkpoint(
                model.checkpoint,
                model.dtype,
                mesh,
                matrices=matrix_dtype(model.dtype, model.compute_dtype),
                by_layer=rollout_grid(rollout) is None,  # replicas split the layers themselves
                on_progress=on_progress,
            )
            tokenizer = tokenizer_job.result()
        check_vocab_size(tokenizer, model_config, f"model.checkpoint={model.checkpoint}")
        compute_dtype = None if model.compute_dtype == "same" else model.compute_dtype
        max_prompt_tokens = data.max_prompt_tokens if policy.pad_to_max else 0
        config = engine_config(rollout, slots, max_prompt_tokens, num_batch_shards(mesh.shape), policy.pad_to_max)
        end_tokens = ends_of_generation(data, model.checkpoint, tokenizer)
        config = replace(
            config, purpose=purpose, compute_dtype=compute_dtype, attention="xla", budget=None, end_tokens=end_tokens
        )
        kv_budget = client_kv_budget(rollout, planned, mesh, config, longest, device_bytes)
        engine = make_engine(
            model_config, params, tokenizer, replace(config, budget=kv_budget), mesh, rollout_grid(rollout)
        )
        yield PolicyClient(engine, find_recipe(policy.recipe), style_for(policy.recipe, data, tokenizer), executor)


def _check_memory(planned: PlannedModel, rollout: RolloutConfig, mesh: jax.sharding.Mesh) -> None:
    """Raise InputError, with settings that would fit, for weights that exceed a device's memory."""
    model, device_bytes = planned.section, device_memory(mesh)
    bfloat16_model = planned._replace(section=replace(model, dtype="bfloat16"))
    needed, in_bfloat16 = (
        inference_weights(weights, mesh, rollout_grid(rollout)) for weights in (planned, bfloat16_model)
    )
    if not device_bytes or needed <= device_bytes:
        return
    devices = f"{-(-needed // device_bytes)} times as many devices (mesh.fsdp)"
    advice = (
        f"model.dtype=bfloat16, which needs {format_bytes(in_bfloat16)}, or {devices}"
        if in_bfloat16 <= device_bytes
        else devices
    )
    dtype = matrix_dtype(model.dtype, model.compute_dtype)
    raise InputError(
        f"memory: the weights of {model.checkpoint} need {format_bytes(needed)} per device in {dtype}, and a device "
        f"has {format_bytes(device_bytes)}: use {advice}, or a smaller model"
    )


def style_for(recipe_name: str, data: DataConfig, tokenizer: Any) -> PromptStyle:
    """Return the recipe's prompt style, adapted to the tokenizer as in training.

    If the chat template opens a reasoning tag at the end of the prompt, answers continue it. `data.shots` sets the
    number of few-shot examples. Raises InputError as `choose_shots` does.
    """
    recipe = find_recipe(recipe_name)
    return recipe.adapt_style(recipe.style_for(data), tokenizer)._replace(shots=choose_shots(data))


def make_sampling_params(section: SamplingConfig, n: int, seed: int, stop: Sequence[str]) -> SamplingParams:
    """Return the sampling parameters of a configuration section, for `n` answers per prompt."""
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


def max_answer_tokens(section: SamplingConfig) -> int:
    """Return the maximum number of tokens of an answer by a configuration section, over all of its turns."""
    return make_sampling_params(section, n=1, seed=0, stop=()).longest


def check_sample(sample: Sample) -> Sample:
    """Return a sample; raises InputError if the engine could not serve it."""
    if sample.error:
        raise InputError(f"sampling: {sample.error}")
    return sample


def response(sample: Sample) -> Response:
    """Return the turns of an answer with their roles, so that a text cannot imitate another role."""
    return tuple((turn.role, turn.text) for turn in sample.turns)


AnswersCallback = Callable[[int, int], None]
"""Progress callback: (number of answers, total); it may raise to stop sampling."""

AnswerFn = Callable[[str, Sequence[Example], int, int, AnswersCallback], list[QuestionAnswers]]
"""Samples answers to questions.

Arguments: name of the benchmark set, its questions, number of the run (of `evaluate.runs`, which is added to the seed),
number of the rollout in the run, and progress callback.
"""


@contextmanager
def open_model_answers(
    policy: PolicySpec,
    cfg: EvaluateSettings,
    executor: Executor,
    sets: Mapping[str, Sequence[Example]],
    display: Display,
) -> Iterator[AnswerFn]:
    """Open the model, make all prompts, and yield a function that samples answers by the section `evaluate`.

    Raises InputError if no prompt fits, and for several turns of a single-turn recipe.
    """
    max_tokens, report = policy.data.max_prompt_tokens, display.note
    with ExitStack() as stack:
        stack.enter_context(record_compilations(display.activity.compile_stats, display.activity.clock))
        count = count_tensors(load_config(policy.model.checkpoint))
        with display.task(f"reading the weights of {policy.model.checkpoint}", count, "tensors") as on_progress:
            longest = max_answer_tokens(cfg.sampling)
            client = stack.enter_context(
                open_policy_client(policy, executor, cfg.max_num_seqs, Purpose.EVAL, longest, on_progress)
            )
        check_turns(client.recipe, cfg.sampling.turns)
        shortening = PromptShortener(
            policy.data, lambda data: style_for(policy.recipe, data, client.engine.tokenizer), client.engine.tokenizer
        )
        prompts: dict[str, dict[str, Prompt]] = {}
        for name, examples in sets.items():
            prompt_set = make_prompt_set(
                name, examples, client.style, client.engine.tokenizer, max_tokens, display, shortening=shortening
            )
            prompts[name] = {prompt.uid: prompt for prompt in prompt_set.prompts}
            if prompt_set.skipped:
                report(f"{name}: {quantity(len(prompt_set.skipped), 'prompts', 'are')} too long and count as wrong")

        def generate(
            name: str, examples: Sequence[Example], run: int, rollout_number: int, on_progress: AnswersCallback
        ) -> list[QuestionAnswers]:
            sampling = make_sampling_params(
                cfg.sampling, cfg.samples, policy.seed + run, client.stops(cfg.sampling.stop)
            )
            pairs = [(example, prompts[name][example.uid]) for example in examples if example.uid in prompts[name]]
            results = sample_answers(client, pairs, sampling, rollout_number, cfg.sampling.turns, on_progress)
            _report_errors(
                name, [(example.uid, answer.error) for (example, _), answer in zip(pairs, results, strict=True)], report
            )
            answered = {example.uid: answer for (example, _), answer in zip(pairs, results, strict=True)}
            too_long = QuestionAnswers((), error=f"prompt over {max_tokens} tokens")
            return [answered.get(example.uid, too_long) for example in examples]

        yield generate


def _report_errors(name: str, errors: Sequence[tuple[str, str]], report: Callable[[str], None]) -> None:
    """Report the number of questions that the engine could not serve, and the reason of the first."""
    failed = [(uid, error) for uid, error in errors if error]
    if failed:
        subject = quantity(len(failed), "questions", "are")
        report(f"{name}: {subject} not asked, which counts as wrong: {failed[0][1]} ({failed[0][0]})")


def check_turns(recipe: Recipe, turns: int) -> None:
    """Raise InputError for several turns of a single-turn recipe."""
    if turns > 1 and recipe.turns is None:
        raise InputError(f"recipe {recipe.name} answers in one turn: evaluate.sampling.turns must be 1, not {turns}")


def sample_answers(
    client: PolicyClient,
    pairs: Sequence[tuple[Example, Prompt]],
    sampling: SamplingParams,
    rollout_number: int = 0,
    max_turns: int = 1,
    on_progress: AnswersCallback | None = None,
) -> list[QuestionAnswers]:
    """Sample `sampling.n` answers per question and wait for all; questions with an invalid request have an `error`.

    `rollout_number` and `max_turns` are those of `PolicyClient.generate`. `on_progress` gets the number of finished
    answers and their total.
    """
    if not pairs:
        return []
    samples_of: list[dict[int, Sample]] = [{} for _ in pairs]
    errors: dict[int, str] = {}
    examples, prompts = [example for example, _ in pairs], [prompt for _, prompt in pairs]
    generated = []
    for sample in client.generate(examples, prompts, sampling, rollout_number, max_turns):
        generated.append(sample)
        if on_progress:
            on_progress(sum(not sample_.error for sample_ in generated), len(pairs) * sampling.n)
    for sample in client.engine.gather(generated):
        if sample.error:
            errors[sample.prompt_index] = sample.error
        else:
            samples_of[sample.prompt_index][sample.index] = sample
    results = []
    for i, ((example, prompt), samples) in enumerate(zip(pairs, samples_of, strict=True)):
        if i in errors:
            results.append(QuestionAnswers((), prompt=prompt.text, error=errors[i]))
            continue
        ordered = [samples[g] for g in range(sampling.n)]
        sqls = tuple(client.parse(sample_, example).sql for sample_ in ordered)
        tokens = sum(sum(sample_.is_sampled) for sample_ in ordered)
        reasons = tuple(sample.finish_reason for sample in ordered)
        responses = tuple(map(response, ordered))
        results.append(QuestionAnswers(sqls, responses, prompt.text, tokens=tokens, finish_reasons=reasons))
    return results
