"""A run that is open: its folder, configuration, questions, tokenizer, mesh, executor and files.

`build` makes what it trains with, `lifecycle` goes through its steps.
"""

from __future__ import annotations

import dataclasses
import hashlib
import json
from collections.abc import Iterator, Mapping
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass
from functools import cached_property, partial
from pathlib import Path
from typing import Any

import jax

from jaxrl_sql.algo.step import LogprobFn
from jaxrl_sql.batch import GroupBatch
from jaxrl_sql.config import TrainConfig, changed, load_config, to_yaml
from jaxrl_sql.config.check import values_by_key
from jaxrl_sql.inference.compiling import hear_compiling
from jaxrl_sql.inference.ends import ends_of_generation
from jaxrl_sql.inference.program_cache import keep_programs
from jaxrl_sql.inference.questions import PassedQuestions, load_questions, model_config, open_tokenizer, prompts_of
from jaxrl_sql.inference.training_set import choose_shots
from jaxrl_sql.models import ModelConfig
from jaxrl_sql.models.formats.hf import load_config as load_model_config
from jaxrl_sql.models.spec import count_params
from jaxrl_sql.parallel import mesh as meshes
from jaxrl_sql.parallel import processes, rules
from jaxrl_sql.parallel.watch import watched
from jaxrl_sql.planning.chips import machine_memory
from jaxrl_sql.planning.workload import with_parts
from jaxrl_sql.report.html import write_report
from jaxrl_sql.runtime.display import Display, make_display
from jaxrl_sql.runtime.folder import (
    CHECKPOINTS,
    CONFIG,
    DISK_FULL,
    cannot_write,
    found_numbers,
    keep_config,
    note_saved,
    open_folder,
    places_of_begin,
    refuse_edited,
    saved_steps,
)
from jaxrl_sql.runtime.health import UNHEALTHY, Health, HealthError
from jaxrl_sql.runtime.memory import Surplus
from jaxrl_sql.runtime.metrics import START, MetricsWriter, SampleWriter
from jaxrl_sql.runtime.model_locator import today
from jaxrl_sql.runtime.progress import Compiled
from jaxrl_sql.runtime.rollouts import RolloutWriter
from jaxrl_sql.runtime.signals import ENDED, StopRequest, stop_on_signals
from jaxrl_sql.runtime.trackers import open_trackers
from jaxrl_sql.text2sql.env.executor import Executor, make_executor
from jaxrl_sql.text2sql.evals.score_predictions import OWN_SCORERS, check_rules
from jaxrl_sql.text2sql.prompts.prompts import PromptSet, PromptStyle, Pruning
from jaxrl_sql.text2sql.recipes import Recipe, find_recipe
from jaxrl_sql.training.about import noted_session
from jaxrl_sql.training.batching.sft_dataset import SftDataset, make_sft_dataset
from jaxrl_sql.training.caller import NOTHING, CallerInputs
from jaxrl_sql.training.checkpoint import Checkpoints
from jaxrl_sql.training.inputs import file_inputs, question_input, refuse_other_inputs
from jaxrl_sql.types import Example, InputError, JaxrlSqlError


class PreemptedError(JaxrlSqlError):
    """A step was left while its answers were being sampled, with nothing changed: the machine is about to go."""


@dataclass
class Session:
    """A run that is open. Loops ask `agree_to_stop` between steps and end by `stopped` when it says so (`stop`).

    `evaluation` is the last one's (step, numbers), which rates the checkpoint of that step and is made but once;
    `eval_rules` judges the answers of each set of `evals`. `inputs` are hashes of files and questions.
    `ends` are the tokens that end an answer, the taught one last. `caller` has the values of a caller in Python.
    """

    config: TrainConfig
    folder: Path
    recipe: Recipe
    style: PromptStyle
    tokenizer: Any
    model: ModelConfig
    mesh: jax.sharding.Mesh
    executor: Executor
    train: PromptSet
    evals: dict[str, PromptSet]
    eval_rules: dict[str, str]
    metrics: MetricsWriter
    samples: SampleWriter
    checkpoints: Checkpoints
    display: Display
    health: Health
    rollouts: RolloutWriter = dataclasses.field(default_factory=lambda: RolloutWriter(None, 0))
    request: StopRequest = dataclasses.field(default_factory=StopRequest)
    surplus: Surplus = dataclasses.field(default_factory=lambda: Surplus(machine_memory()))
    evaluation: tuple[int, dict[str, float]] | None = None
    stop_reason: str = ""
    stop: bool = False
    policies: dict[float, LogprobFn] = dataclasses.field(default_factory=dict)
    inputs: dict[str, str] = dataclasses.field(default_factory=dict)
    ends: tuple[int, ...] = ()
    caller: CallerInputs = NOTHING

    @property
    def compiled(self) -> Compiled:
        """Return what has been compiled for the run."""
        return self.display.activity.compiled

    @cached_property
    def sft_dataset(self) -> SftDataset:
        """Return what the supervised phase teaches."""
        data, end = self.config.data, self.ends[-1]
        recipes = [find_recipe(name) for name in self.config.sft.formats] or [self.recipe]
        made = ((one, one.style_for(data)) for one in recipes)
        plain = [(one, one.opened(style, self.tokenizer)) for one, style in made]
        dialogues = [one.in_dialogues(style, self.executor, self.config.sampling.turns) for one, style in plain]
        styles = [style._replace(shots=self.style.shots) for style in dialogues]
        config, examples = self.config, self.train.examples
        with self.display.work("tokenizing what sft teaches", len(examples), "questions") as tick:
            return make_sft_dataset(config.sft, data, config.seed, examples, styles, self.tokenizer, end, tick)

    def count_epochs(self) -> None:
        """Turn `sft.epochs`, where they are asked for, into `sft.steps` of this run's configuration."""
        if epochs := self.config.sft.epochs:
            self.config = changed(self.config, {"sft.steps": self.sft_dataset.order.batches(epochs)})

    def keep_config(self, **sections: Any) -> None:
        """Write sections, with numbers that were found at the start, to the configuration in the run's folder."""
        if processes.is_first():
            keep_config(
                self.folder, to_yaml(dataclasses.replace(load_config(TrainConfig, self.folder / CONFIG), **sections))
            )

    def note(self, text: str) -> None:
        """Show the user a line, outside of the progress display."""
        self.display.note(text)

    @cached_property
    def max_prompt_bucket(self) -> int:
        """Return the tokens of the longest prompt, which all are padded to; 0 where each is to its own bucket."""
        if not self.config.run.pad_to_max:
            return 0
        return max(length for made in (self.train, *self.evals.values()) for length in made.lengths())

    def rows_here(self, rows: int) -> list[int]:
        """Return which of B = `rows` prompts this process packs: all, when it is alone."""
        return rules.rows_here(self.mesh, rows)

    def to_mesh(self, batch: GroupBatch, rows: int) -> GroupBatch:
        """Put a packed batch, this process's part of B = `rows` prompts, on the devices, split along B."""
        return rules.shard_batch(batch, self.mesh, rows)

    def agree_to_stop(self) -> bool:
        """Exchange requests to stop, so that all processes stop after the same step; return whether they do."""
        codes = [code for code in processes.exchange([self.request.exit_code]) if code is not None]
        if codes:
            self.stop, self.request.exit_code = True, min(codes)
        return self.stop

    def should_abort(self, code: int | None = None) -> bool:
        """Return whether to leave work that a resumed run makes again: a stop was requested (of exit code `code`).

        Only in a run of one process: several stop after the same step.
        """
        is_meant = self.request.is_made and code in {None, self.request.exit_code}
        return is_meant and jax.process_count() == 1

    def stopped(self) -> int:
        """Report that the run was stopped and return its exit code; raise HealthError for a run that cannot learn."""
        if self.stop_reason:
            raise HealthError(self.stop_reason)
        self.checkpoints.wait()  # who reads the next line may end the machine
        self.note(f"stopped; {self.caller.resume_advice(self.folder)}")
        return self.request.exit_code or 0

    def resume_step(self) -> int:
        """Return the step this run goes on from (0: the start) and drop what was written after it."""
        step = self.checkpoints.latest() if self.config.run.resume else None
        if step is None:
            self.metrics.rewind(START, 0)
            self.samples.rewind(START)
            self.rollouts.rewind({})
            return 0
        if step > _steps(self.config):
            raise InputError(f"{self.folder}: step {step} is made already, and the run would end before it")
        known = self.checkpoints.host(step)["run"]
        refuse_other_inputs(self.folder, known["inputs"], self.inputs)
        if known["questions"] != digest(self.train):
            raise InputError(
                f"{self.folder}: {self.config.data.dir}/{self.config.data.train} holds other questions or prompts than "
                "the run began with: name another run.dir to begin a run with them"
            )
        refuse_edited(self.folder, known["config"], values_by_key(self.config))
        self._rewind(known["lines"], step)
        self.health.counts |= known["health"]
        if known["evaluation"]:
            self.evaluation = (known["evaluation"][0], known["evaluation"][1])
        self.keep_config(model=self.config.model, data=self.config.data)  # folders may have moved
        self.note(f"going on from step {step}")
        return step

    def _rewind(self, lines: Mapping[str, Any], step: int) -> None:
        """Drop what the run's files hold beyond the checkpoint of a step; raises InputError for one that is damaged."""
        self.metrics.rewind(tuple(lines["metrics"]), step)
        self.samples.rewind(tuple(lines["samples"]))
        self.rollouts.rewind(lines["rollouts"])
        for name, file in (("metrics", self.metrics), ("samples", self.samples)):
            if processes.is_first() and file.position != tuple(lines[name]):
                self.note(f"{name}.jsonl is gone: its lines begin after step {step}")

    def record(self, step: int, phase: str, numbers: Mapping[str, float]) -> None:
        """Write the numbers of a step, show them, check the run's health, and call the caller's callback.

        Raises HealthError when they are no numbers; a run that learns nothing any more is asked to stop, and so is one
        whose callback returns a true value.
        """
        self.metrics.write(step, {"phase": phase, **numbers})
        self.display.update(step, {"phase": phase, **numbers})
        if stop_reason := self.health.check(step, phase, numbers):
            self.stop_reason, self.request.exit_code = stop_reason, UNHEALTHY
        callback = self.caller.callback
        if callback is not None and callback(step, {"phase": phase, **numbers}) and not self.request.is_made:
            self.request.exit_code = ENDED

    def write_sample(
        self,
        step: int,
        phase: str,
        example: Example,
        text: str,
        finish_reason: str,
        sql: str | None,
        status: str,
        reward: float,
    ) -> None:
        """Keep an answer with its SQL, status and reward; where a tracker has traces it is one."""
        about = {"phase": phase, "finish_reason": finish_reason, "sql": sql, "status": status, "reward": reward}
        self.metrics.trace(step, example.question, text, about)
        self.samples.write(
            {
                "step": step,
                "phase": phase,
                "uid": example.uid,
                "question": example.question,
                "gold": example.gold_sql,
                "text": text,
                "finish_reason": finish_reason,
                "sql": sql,
                "status": status,
                "reward": reward,
                **({"dialect": example.dialect} if example.dialect != "sqlite" else {}),
            }
        )


@contextmanager
def open_session(config: TrainConfig, caller: CallerInputs = NOTHING) -> Iterator[Session]:
    """Open everything a run needs, and on leaving write its report and close what was opened.

    Raises RunFolderError when the folder's disk is full, and HealthError for a run that is not well.
    """
    config = changed(config, caller.names(config.data, config.run.dir))
    find_recipe(config.recipe)  # what names nothing leaves no folder
    passed = caller.questions()
    if config.model.checkpoint:
        load_model_config(config.model.checkpoint)
    processes.start_processes(config.mesh.processes)
    is_first = processes.is_first()
    config = _with_day(changed(config, found_numbers(config.run, config.data.date, config.rollout)))
    text = to_yaml(changed(config, places_of_begin(config.run)))
    folder = open_folder(config.run, values_by_key(config), text, is_first)
    keep_programs(config.run.compilation_cache)
    again = "start all of them again: with run.resume=true they go on from the last checkpoint"
    try:
        # Until all is written: a signal on the way out must not break what is being saved.
        with processes.told_of_lost(again), watched(again), ExitStack() as closed:
            with _opened(config, folder, caller, passed, closed) as session:
                yield session
            if is_first:
                write_report(folder)
    except HealthError:
        if is_first:
            write_report(folder)
        raise
    except OSError as error:
        if error.errno in DISK_FULL:
            raise cannot_write(folder, error) from error
        raise


@contextmanager
def _opened(
    config: TrainConfig, folder: Path, caller: CallerInputs, passed: PassedQuestions, closed: ExitStack
) -> Iterator[Session]:
    """Open what a session holds; signals are heard until `closed` is left."""
    is_first = processes.is_first()
    trackers = open_trackers(folder, config.run.trackers, config.run.project, dataclasses.asdict(config), is_first)
    with (
        make_display(config.run.display if is_first else "none", _steps(config), title=folder.name) as display,
        make_executor(config.executor, config.data.hide) as executor,
        MetricsWriter(folder if is_first else None, trackers) as metrics,
        SampleWriter(folder if is_first else None) as samples,
        Checkpoints(
            folder / CHECKPOINTS,
            config.run.keep_checkpoints,
            config.run.keep_best,
            on_saved=partial(note_saved, folder),
        ) as checkpoints,
    ):
        recipe, data = find_recipe(config.recipe), config.data
        if caller.reward is not None:
            recipe = recipe._replace(reward_function=caller.reward)
        if max(config.sampling.turns, config.validation.sampling.turns) > 1 and (
            recipe.turns is None or data.prompt == "compact"
        ):
            single = f"recipe {recipe.name}" if recipe.turns is None else "data.prompt=compact"
            raise InputError(f"{single} answers in one turn: sampling.turns and validation.sampling.turns must be 1")
        style = recipe.style_for(data)
        with processes.first_process_first("data"):
            train, evals = load_questions(data, config.sft, config.executor, executor, display, passed)
            judged_by = {name: eval_rule(config.validation.rule, recipe, found.rule) for name, found in evals.items()}
            with display.work("opening the tokenizer"):
                tokenizer = open_tokenizer(data, config.model.checkpoint, folder, train, style)
            style = recipe.opened(style, tokenizer)._replace(shots=choose_shots(data))
        with display.work("opening the devices"):
            mesh = meshes.make_mesh(config.mesh.data, config.mesh.fsdp, config.mesh.tensor)
        sft, grpo = with_parts(config.sft, config.grpo, rules.batch_ways(mesh.shape))
        config = dataclasses.replace(config, sft=sft, grpo=grpo)
        longest = data.max_prompt_tokens
        pruning = Pruning(longest, config.seed) if data.prune else None
        session = Session(
            config=config,
            folder=folder,
            recipe=recipe,
            style=style,
            tokenizer=tokenizer,
            model=model_config(config.model, tokenizer),
            mesh=mesh,
            executor=executor,
            train=prompts_of("train", train, style, tokenizer, longest, display, pruning),
            evals={
                name: prompts_of(name, found.examples, style, tokenizer, longest, display)
                for name, found in evals.items()
            },
            eval_rules=judged_by,
            metrics=metrics,
            samples=samples,
            checkpoints=checkpoints,
            display=display,
            health=Health(config.health),
            rollouts=RolloutWriter(folder if is_first else None, config.run.keep_rollouts),
            ends=ends_of_generation(data, config.model.checkpoint, tokenizer),
            caller=caller,
        )
        session.inputs = _inputs(session)
        session.count_epochs()
        display.course(_phases(session.config))
        closed.enter_context(hear_compiling(session.compiled, display.activity.clock))
        session.request = closed.enter_context(stop_on_signals(display.note))
        about = noted_session(folder if is_first else None, count_params(session.model))
        with jax.set_mesh(session.mesh), about:
            yield session


def _with_day(config: TrainConfig) -> TrainConfig:
    """Return the configuration of a new run with the day on which it begins, where prompts are chats."""
    is_resumed = config.run.resume and saved_steps(Path(config.run.dir))
    if config.data.date or config.data.prompt != "chat" or is_resumed:
        return config
    return changed(config, {"data.date": min(processes.exchange([today()]))})  # processes may begin around midnight


def eval_rule(rule: str, recipe: Recipe, of_set: str) -> str:
    """Return the rule that answers are judged by in training, on a set whose own is `of_set`.

    It is `rule`, that of the configuration, else that of the recipe, else the set's; a set with a scorer of its own
    keeps that. Raises InputError for a rule that is none.
    """
    rule = rule or (of_set if of_set in OWN_SCORERS else recipe.eval_rule or of_set)
    check_rules((rule,))
    return rule


def _inputs(s: Session) -> dict[str, str]:
    """Return the hashes of a run's files and questions, which the first process computes for all."""
    inputs: dict[str, str] = {}
    if processes.is_first():
        sets = {"data.train": s.train} | {f"data.evals/{name}": questions for name, questions in s.evals.items()}
        with s.display.work("hashing files and questions", is_told=False):
            inputs = file_inputs(s.config.recipe, s.config.data, s.config.model.checkpoint) | s.caller.hashes()
            for name, questions in sets.items():  # a streamed set has too many databases to read them all
                is_streamed = questions.streamed is not None
                inputs[name] = s.config.data.dir if is_streamed else question_input(questions, digest(questions))
    first, *_ = processes.exchange([inputs])
    return dict(first)


def _steps(config: TrainConfig) -> int:
    return config.sft.steps + config.grpo.steps + config.second_stage.steps


def _phases(config: TrainConfig) -> list[tuple[str, int]]:
    """Return (name, last step) of each phase that the run has."""
    found, last = [], 0
    for name, steps in (("sft", config.sft.steps), ("grpo", config.grpo.steps), ("grpo2", config.second_stage.steps)):
        last += steps
        found += [(name, last)] if steps else []
    return found


def digest(questions: PromptSet) -> str:
    """Return a short word for what is trained on: other questions, or others in another order, give another."""
    whole = hashlib.sha256()
    if questions.streamed:
        whole.update(questions.streamed[0].encode())
    for prompt in questions.sample(16):
        whole.update(json.dumps([prompt.uid, len(prompt.token_ids), prompt.text]).encode())
    return whole.hexdigest()[:16]
