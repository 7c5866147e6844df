"""Train: open a run and run its phases.

Opening creates the folder, outputs, questions, devices and executor, and checks that the run fits before anything is
compiled. On exit the report is written and everything is closed. A run has up to three phases: the cold start
(supervised learning, `sft.steps`), GRPO, and a second stage of GRPO.
"""

from __future__ import annotations

import dataclasses
from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from contextlib import ExitStack, contextmanager, suppress
from functools import cache, partial
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any, NamedTuple

import jax

from jaxrl_sql.config import DataConfig, TrainConfig, replace_values, to_yaml
from jaxrl_sql.config.check import values_by_key
from jaxrl_sql.inference.compiling import record_compilations
from jaxrl_sql.inference.ends import ends_of_generation
from jaxrl_sql.inference.program_cache import keep_programs
from jaxrl_sql.inference.prompt_lengths import PromptShortener, length_lines, streamed_lines
from jaxrl_sql.inference.questions import (
    CallerQuestions,
    check_prompts,
    load_questions,
    model_config,
    open_tokenizer,
)
from jaxrl_sql.inference.trained_questions import save_trained_questions
from jaxrl_sql.inference.training_set import choose_shots, is_generated
from jaxrl_sql.models.lora import policy_params
from jaxrl_sql.models.spec import count_params
from jaxrl_sql.models.value import add_value_head
from jaxrl_sql.parallel import mesh as meshes
from jaxrl_sql.parallel import processes, rules
from jaxrl_sql.parallel.watch import watch_processes
from jaxrl_sql.planning.workload import with_parts
from jaxrl_sql.report.html import write_report
from jaxrl_sql.runtime.display import Display, make_display
from jaxrl_sql.runtime.folder import (
    CHECKPOINTS,
    METRICS,
    UNWRITABLE,
    check_folder,
    has_steps,
    list_saved_steps,
    note_saved,
    open_folder,
    paths_from_start,
    resume_command,
    settings_from_start,
    write_error,
)
from jaxrl_sql.runtime.health import Health
from jaxrl_sql.runtime.hub import pinned_name
from jaxrl_sql.runtime.metrics import MetricsWriter, SampleWriter
from jaxrl_sql.runtime.progress import quantity
from jaxrl_sql.runtime.rollouts import RolloutWriter
from jaxrl_sql.runtime.signals import stop_on_signals
from jaxrl_sql.runtime.trackers import open_trackers
from jaxrl_sql.text2sql.benchmarks import Benchmark
from jaxrl_sql.text2sql.env.executor import Executor, make_executor
from jaxrl_sql.text2sql.env.verdicts import UnreachableServerError
from jaxrl_sql.text2sql.evals.score_predictions import RULES_WITH_SCORER, check_rules
from jaxrl_sql.text2sql.prompts.prompts import PromptSet, Pruning, make_prompts
from jaxrl_sql.text2sql.prompts.styles import PromptStyle
from jaxrl_sql.text2sql.question_sets.stream import StreamedQuestions, stream_prompts
from jaxrl_sql.text2sql.recipes import Recipe, find_recipe
from jaxrl_sql.training.about import SessionPlan, record_session
from jaxrl_sql.training.batching.sft_dataset import SftDataset, make_sft_dataset
from jaxrl_sql.training.build import export_model, make_params
from jaxrl_sql.training.caller import NO_CALLER_INPUTS, CallerInputs
from jaxrl_sql.training.checkpoint import Checkpoints
from jaxrl_sql.training.early_checks import CheckedInputs, assumed_config, check_inputs
from jaxrl_sql.training.evaluation import evaluate_all
from jaxrl_sql.training.grpo import open_second_stage, open_stage
from jaxrl_sql.training.inputs import count_questions, hash_files, hash_question_sets, input_mib
from jaxrl_sql.training.lifecycle import rating_of, report_end, run_phase
from jaxrl_sql.training.preflight import PlannedRun, check_attention, check_devices, preflight
from jaxrl_sql.training.resume import refuse_other_checkpoint, resolve_resumed_config, resume
from jaxrl_sql.training.sft import run_sft
from jaxrl_sql.training.stages import Progress, Stage
from jaxrl_sql.training.training_run import Outputs, PromptFormat, QuestionSets, RunStatus, TrainingRun
from jaxrl_sql.types import Example, InputError


def train(config: TrainConfig, caller: CallerInputs = NO_CALLER_INPUTS) -> int:
    """Open a run, run all its phases, and return the exit code.

    `caller` are Python values that the caller passes in addition to the configuration, such as a reward function.
    """
    with open_run(config, caller) as run:
        return _train(run)


def _train(run: TrainingRun) -> int:
    """Run the phases of an open run: cold start, evaluation, GRPO, evaluation; return the exit code."""
    config = run.config  # epochs have been converted to steps
    resume_point, sft_steps = resume(run), config.sft.steps
    trainable, frozen = make_params(run) if resume_point.is_after(sft_steps) else run_sft(run, resume_point)
    if run.status.is_stopping:
        return run.report_stop()
    progress = Progress()
    if config.grpo.algorithm == "ppo":
        trainable = add_value_head(trainable, run.model, run.mesh)
    if not resume_point.is_after(sft_steps):
        progress.before = evaluate_all(run, policy_params(trainable, frozen), sft_steps)
        if run.sync_stop_requests():
            return run.report_stop()
        progress.history.append([sft_steps, rating_of(run, progress.before)])
    stage = Stage("grpo", sft_steps, config.grpo.steps, config.grpo.optim)
    phase = open_stage(run, stage, trainable, frozen, progress, resume_point)
    if not run_phase(run, phase, resume_point):
        return run.report_stop()
    if config.second_stage.steps:
        phase = open_second_stage(run, phase, resume_point)
        if not run_phase(run, phase, resume_point):
            return run.report_stop()
    state, before = phase.state, phase.progress.before
    # The last step has been evaluated, so this returns its metrics; without GRPO steps it returns those from above.
    after = evaluate_all(run, policy_params(state.trainable, frozen), phase.last)
    if not after:  # a stop was requested meanwhile
        return run.report_stop()
    export_model(run, state.trainable, frozen)
    for name in run.questions.evals:
        old, new = (metrics[f"eval/{name}/accuracy"] for metrics in (before, after))
        run.note(f"{name}: accuracy {100 * old:.1f} % before GRPO, {100 * new:.1f} % after")
    report_end(run)
    return 0


@contextmanager
def open_run(config: TrainConfig, caller: CallerInputs = NO_CALLER_INPUTS) -> Iterator[TrainingRun]:
    """Open a run; raises InputError before anything is compiled if it cannot fit."""
    with open_unchecked(config, caller) as run:
        yield dataclasses.replace(run, config=preflight(run))


def dry_run(config: TrainConfig) -> int:
    """Read the questions, run their golds, make the prompts and estimate the memory, without compiling.

    The run's folder is not changed. A dry run raises the same errors as the run. It does not generate synthetic data;
    if the run would generate them first, the dry run checks only the parts that do not depend on the questions.
    """
    config = replace_values(
        config, settings_from_start(config.run, config.data.chat.date, config.rollout, config.model)
    )
    folder = check_folder(config.run, values_by_key(config))
    if config.data.source == "synth" and not is_generated(config.data):
        return _dry_run_without_data(config, folder)
    with TemporaryDirectory() as scratch:
        scratch_settings = {
            "run.dir": f"{scratch}/{folder.name}",
            "run.resume": False,
            "run.trackers": [],
            "run.display": "plain",
        }
        with open_run(replace_values(config, scratch_settings)) as run:
            if config.run.resume:
                refuse_other_checkpoint(folder, run.questions.inputs)
            if run.config.sft.steps:
                epoch = run.questions.sft.order.num_batches(1)
                run.note(f"supervised phase: {quantity(run.config.sft.steps, 'steps')}, {epoch:,} per epoch")
            run.note(f"{folder}: nothing was compiled or written")
    return 0


def _dry_run_without_data(config: TrainConfig, folder: Path) -> int:
    """Check a run whose synthetic data is not generated yet, with prompts of the maximum length."""
    find_recipe(config.recipe)
    checked = check_inputs(config.run, config.data, config.model, config.executor.databases, CallerQuestions())
    model = checked.model or assumed_config(config.model, config.data.tokenizer.vocab_size)
    with make_display("plain", 0, title=folder.name) as display, TemporaryDirectory() as scratch:
        mesh = meshes.make_mesh(config.mesh.data, config.mesh.fsdp, config.mesh.tensor)
        sft, grpo = with_parts(config.sft, config.grpo, rules.num_batch_shards(mesh.shape))
        config = dataclasses.replace(config, sft=sft, grpo=grpo)
        check_devices(PlannedRun(config, model, mesh, Path(scratch), display.note))
        display.note(
            f"data: {config.data.dir} is not generated yet, and a dry run does not generate it: prompts of "
            f"{config.data.max_prompt_tokens} tokens (data.max_prompt_tokens) were assumed"
        )
        display.note(f"{folder}: nothing was compiled, or written there")
    return 0


@contextmanager
def open_unchecked(config: TrainConfig, caller: CallerInputs = NO_CALLER_INPUTS) -> Iterator[TrainingRun]:
    """Open everything a run needs, without the checks of `preflight`; on exit write its report and close it.

    Raises RunFolderError when the folder's disk is full, and HealthError for a run that cannot learn.
    """
    config = replace_values(config, caller.settings_for_inputs(config.data, config.run.dir))
    # Report errors of the user's inputs before devices are opened and a folder is created.
    find_recipe(config.recipe)
    caller_questions = caller.questions()
    checked = check_inputs(config.run, config.data, config.model, config.executor.databases, caller_questions)
    processes.start_processes(config.mesh.processes)
    is_first = processes.is_first()
    config = resolve_resumed_config(config)
    # The folder's config.yaml keeps the paths of the run's start; `resume` replaces them once the inputs are compared.
    config_text = to_yaml(replace_values(config, paths_from_start(config.run)))
    folder = open_folder(config.run, values_by_key(config), config_text, is_first)
    keep_programs(config.run.compilation_cache)
    restart_advice = "start all of them again: with run.resume=true they resume from the last checkpoint"
    try:
        # The stack keeps the signal handler until everything is written, so that no signal interrupts a save.
        with processes.report_lost_process(restart_advice), watch_processes(restart_advice), ExitStack() as exit_stack:
            with _open_parts(config, folder, caller, caller_questions, checked, exit_stack) as run:
                yield run
            if is_first:
                write_report(folder)
    except BaseException as error:
        if is_first and (folder / METRICS).is_file():
            with suppress(OSError, InputError):  # the error that ended the run is reported instead
                write_report(folder)
        if isinstance(error, OSError) and error.errno in UNWRITABLE:
            raise write_error(folder, error) from error
        if isinstance(error, UnreachableServerError) and has_steps(folder):  # repeating the command would be refused
            advice = caller.resume_call or resume_command(folder)
            raise InputError(f"{error.cause}. {error.remedy}, then: {advice}") from error
        raise


@contextmanager
def _open_parts(
    config: TrainConfig,
    folder: Path,
    caller: CallerInputs,
    caller_questions: CallerQuestions,
    checked: CheckedInputs,
    exit_stack: ExitStack,
) -> Iterator[TrainingRun]:
    """Open the parts of a run; the handler of signals stays until `exit_stack` exits."""
    is_first = processes.is_first()
    with _open_outputs(config, folder) as (outputs, executor):
        display = outputs.display
        recipe = _make_run_recipe(config, caller)
        with display.task("opening the devices"):
            mesh = meshes.make_mesh(config.mesh.data, config.mesh.fsdp, config.mesh.tensor)
        # An automatic number of micro-batches (gradient_accumulation_steps of 0) depends on the mesh.
        sft, grpo = with_parts(config.sft, config.grpo, rules.num_batch_shards(mesh.shape))
        config = dataclasses.replace(config, sft=sft, grpo=grpo)
        platform = mesh.devices.flat[0].platform
        check_attention(config, checked.model or assumed_config(config.model, 1), platform)
        if checked.model is not None:  # otherwise `preflight` checks it, after the questions were read
            check_devices(PlannedRun(config, checked.model, mesh, folder))
        loaded = _load_questions(config, folder, recipe, executor, display, caller_questions, checked.tokenizer)
        model = model_config(config.model, loaded.prompt_format.tokenizer)
        questions = _make_question_sets(config, loaded, executor, display, caller)
        if epochs := config.sft.epochs:
            config = replace_values(config, {"sft.steps": questions.sft.order.num_batches(epochs)})
        display.set_phases(config.phases())
        exit_stack.enter_context(record_compilations(display.activity.compile_stats, display.activity.clock))
        status = RunStatus(Health(config.health), exit_stack.enter_context(stop_on_signals(display.note)))
        base = pinned_name(config.model.checkpoint)  # `org/name@commit` of a hub model, else ""
        if base:
            display.note(f"model: {base}")
        if is_first and config.total_steps() and questions.train.streamed is None:
            save_trained_questions(folder, questions.train.examples)
        plan = SessionPlan(count_params(model), config.phases(), caller.resume_call, base)
        session = record_session(folder if is_first else None, plan, display.activity, status.request)
        with jax.set_mesh(mesh), session:
            yield TrainingRun(
                config, folder, loaded.prompt_format, model, mesh, executor, questions, outputs, status, caller=caller
            )


@contextmanager
def _open_outputs(config: TrainConfig, folder: Path) -> Iterator[tuple[Outputs, Executor]]:
    """Open the display, the executor and the files of a run; only the first process writes the files."""
    run, is_first = config.run, processes.is_first()
    written_folder = folder if is_first else None
    trackers = open_trackers(folder, run.trackers, run.project, dataclasses.asdict(config), is_first)
    with (
        make_display(run.display if is_first else "none", config.total_steps(), title=folder.name) as display,
        make_executor(config.executor, config.data.hide) as executor,
        MetricsWriter(written_folder, trackers) as metrics,
        SampleWriter(written_folder) as samples,
        Checkpoints(
            folder / CHECKPOINTS,
            run.keep_checkpoints,
            run.keep_best,
            on_saved=partial(note_saved, folder),
            task=display.task,
        ) as checkpoints,
    ):
        rollouts = RolloutWriter(written_folder, run.keep_rollouts)
        yield Outputs(display, metrics, samples, rollouts, checkpoints), executor


def _make_run_recipe(config: TrainConfig, caller: CallerInputs) -> Recipe:
    """Return the recipe with the caller's reward; raises InputError for turns that it does not support."""
    recipe = find_recipe(config.recipe)
    if caller.reward is not None:
        recipe = recipe._replace(reward_function=caller.reward)
    if max(config.sampling.turns, config.validation.sampling.turns) > 1 and (
        recipe.turns is None or config.data.prompt == "compact"
    ):
        limiting = f"recipe {recipe.name}" if recipe.turns is None else "data.prompt=compact"
        raise InputError(f"{limiting} answers in one turn: sampling.turns and validation.sampling.turns must be 1")
    return recipe


class _LoadedQuestions(NamedTuple):
    """The training questions and the held-out sets by name, without prompts, and the format that makes their prompts.

    `rules` has the comparison rule of each held-out set.
    """

    prompt_format: PromptFormat
    train: Sequence[Example]
    evals: Mapping[str, Benchmark]
    rules: Mapping[str, str]


def _load_questions(
    config: TrainConfig,
    folder: Path,
    recipe: Recipe,
    executor: Executor,
    display: Display,
    caller_questions: CallerQuestions,
    tokenizer: Any,
) -> _LoadedQuestions:
    """Read the questions, and open the tokenizer if it is None.

    The first process does so before the others, as it may generate or download data.
    """
    data = config.data
    style = recipe.style_for(data)
    with processes.first_process_first("data"):
        train, evals = load_questions(data, config.sft, config.executor, executor, display, caller_questions)
        rules_of_evals = {
            name: eval_rule(config.validation.rule, recipe, benchmark.rule) for name, benchmark in evals.items()
        }
        if tokenizer is None:
            with display.task("opening the tokenizer"):
                is_new = processes.is_first() and not list_saved_steps(folder)
                tokenizer = open_tokenizer(data, config.model.checkpoint, folder, train, style, is_new)
        style = recipe.adapt_style(style, tokenizer)._replace(shots=choose_shots(data))
    ends = ends_of_generation(data, config.model.checkpoint, tokenizer)
    return _LoadedQuestions(PromptFormat(recipe, style, tokenizer, ends), train, evals, rules_of_evals)


def _make_question_sets(
    config: TrainConfig, loaded: _LoadedQuestions, executor: Executor, display: Display, caller: CallerInputs
) -> QuestionSets:
    """Make the prompts of all sets, and hash the inputs of the run.

    Only training prompts are pruned (reduced to fewer tables and columns if they are too long). Pruning keeps the
    tables and columns that the gold uses, which an evaluation must not reveal.
    """
    prompt_format, longest = loaded.prompt_format, config.data.max_prompt_tokens
    pruning = Pruning(longest, config.seed) if config.data.prune else None
    # It measures with which settings too long prompts would fit, for the messages about skipped questions.
    shortener = PromptShortener(config.data, partial(_style_of, prompt_format), prompt_format.tokenizer)
    train_shortener = shortener._replace(seed=config.seed)
    train = _make_prompt_set("train", loaded.train, prompt_format, display, train_shortener, pruning)
    evals = {
        name: _make_prompt_set(name, benchmark.examples, prompt_format, display, shortener)
        for name, benchmark in loaded.evals.items()
    }
    inputs: dict[str, str] = {}
    if processes.is_first():  # the first process computes the hashes for all
        hashed = config.recipe, config.data, config.model.checkpoint
        with display.task("hashing files", input_mib(*hashed), "MiB", is_announced=False) as on_progress:
            inputs = hash_files(*hashed, on_progress) | caller.hashes()
        count = count_questions(train, evals)
        with display.task("hashing questions", count, "questions", is_announced=False) as on_progress:
            inputs |= hash_question_sets(config.data, train, evals, on_progress)
    inputs_of_first, *_ = processes.exchange([inputs])
    make_sft = cache(partial(_make_sft_dataset, config, prompt_format, train, executor, display))
    lines = {name: benchmark.lines for name, benchmark in loaded.evals.items()}
    return QuestionSets(train, evals, loaded.rules, make_sft, dict(inputs_of_first), lines)


def _make_prompt_set(
    name: str,
    examples: Sequence[Example],
    prompt_format: PromptFormat,
    display: Display,
    shortener: PromptShortener,
    pruning: Pruning | None = None,
) -> PromptSet:
    """Make the prompts of the set `name`, of up to `data.max_prompt_tokens` tokens.

    The prompts of a huge set (`StreamedQuestions`) are made when they are used.
    """
    longest = shortener.data.max_prompt_tokens
    if isinstance(examples, StreamedQuestions):

        def report_lengths(lengths: Counter[int], long: Sequence[Example]) -> None:
            for line in streamed_lines(lengths, long, shortener) if processes.is_first() else ():
                display.note(f"{name}: {line}")

        return stream_prompts(
            examples, prompt_format.style, prompt_format.tokenizer, longest, pruning, on_long=report_lengths
        )
    with display.task(f"tokenizing the prompts of {name}", len(examples), "questions") as on_progress:
        prompts = make_prompts(examples, prompt_format.style, prompt_format.tokenizer, longest, pruning, on_progress)
        lines = length_lines(prompts, longest, examples, shortener) if processes.is_first() else []
    return check_prompts(name, prompts, longest, display.note, lines)


def _style_of(prompt_format: PromptFormat, data: DataConfig) -> PromptStyle:
    """Return the style that a run's prompts would have with the settings `data`."""
    style = prompt_format.recipe.adapt_style(prompt_format.recipe.style_for(data), prompt_format.tokenizer)
    return style._replace(shots=prompt_format.style.shots if data.shots else None)


def _make_sft_dataset(
    config: TrainConfig, prompt_format: PromptFormat, train: PromptSet, executor: Executor, display: Display
) -> SftDataset:
    """Make the data set of the supervised phase, with the answer formats of the recipes in `sft.formats`."""
    data, examples = config.data, train.examples
    recipes = [find_recipe(name) for name in config.sft.formats] or [prompt_format.recipe]
    with_styles = [(recipe, recipe.adapt_style(recipe.style_for(data), prompt_format.tokenizer)) for recipe in recipes]
    dialogues = [recipe.in_dialogues(style, executor, config.sampling.turns) for recipe, style in with_styles]
    styles = [style._replace(shots=prompt_format.style.shots) for style in dialogues]
    with display.task("tokenizing the SFT targets", len(examples), "questions") as on_progress:
        return make_sft_dataset(
            config.sft,
            data,
            config.seed,
            examples,
            styles,
            prompt_format.tokenizer,
            prompt_format.ends[-1],
            on_progress,
        )


def eval_rule(rule: str, recipe: Recipe, benchmark_rule: str) -> str:
    """Return the comparison rule of evaluations in training, on a set whose own rule is `benchmark_rule`.

    The result is `rule` (`validation.rule`) if it is set. Otherwise it is the recipe's rule, else the set's own. A set
    that comes with a scorer of its own, such as Spider 2, keeps its rule. Raises InputError for an unknown rule.
    """
    rule = rule or (benchmark_rule if benchmark_rule in RULES_WITH_SCORER else recipe.eval_rule or benchmark_rule)
    check_rules((rule,))
    return rule
