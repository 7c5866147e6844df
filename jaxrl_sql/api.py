"""Train, ask and evaluate from Python; the commands call the same functions.

    import jaxrl_sql as jx

    run = jx.train("configs/quickstart.yaml", {"grpo.steps": 20}, callback=lambda step, metrics: step >= 10)
    run.metrics
    with run.model() as model:
        print(model.ask("shop.sqlite", "How many orders were late?").sql)
    jx.evaluate("data/dev", predictions={"dev_0": "SELECT 1"}, allow_missing=True).numbers

Overrides replace values of the configuration files: mappings with nested or dotted keys, or texts such as
"grpo.steps=20". An error that ends a command with one line is raised here as an exception of `types`, such as
`InputError`. Its message names parameters instead of a command's options.

A recipe (`RECIPES`) is the prompt, answer format, reward and loss of a published method. A benchmark is a set of
questions with databases and gold queries, the reference SQL.
"""

from __future__ import annotations

import dataclasses
import json
import re
import tempfile
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager, suppress
from dataclasses import dataclass, field
from importlib import import_module
from pathlib import Path
from typing import TYPE_CHECKING, Any, Self

from jaxrl_sql import config as configs
from jaxrl_sql.config import EvaluateConfig, FilterConfig, Override, TrainConfig, VerbalConfig
from jaxrl_sql.inference.policy_spec import PolicySpec
from jaxrl_sql.inference.process import prepare_process, require_jax
from jaxrl_sql.inference.prompt_form import resolve_settings
from jaxrl_sql.runtime.folder import CONFIG, METRICS, SAMPLES, report_unwritable
from jaxrl_sql.runtime.model_locator import with_chat_date
from jaxrl_sql.types import Fields, InputError

if TYPE_CHECKING:
    from jaxrl_sql.inference.ask import Reply
    from jaxrl_sql.inference.benchmark_evaluation import EvaluationResult
    from jaxrl_sql.inference.benchmark_sets import InMemoryData
    from jaxrl_sql.text2sql.rewards.score import RewardFunction
    from jaxrl_sql.training.caller import Callback, Questions

# Slots for answers that `Model` decodes at the same time.
_BATCH = 16
# The name of the overrides in error messages, in place of the command line.
_ORIGIN = "overrides"
# An option in an error message, except in a suggested command line.
_OPTION = re.compile(r"`[^`]*`|(?<![\w-])--([a-z]+(?:-[a-z]+)*)")
# Parameters, by option, whose names differ from the option's.
_PARAMETERS = {
    "db": "database",
    "allow-missing": "allow_missing=True",
    "allow-extra": "allow_extra=True",
    "as": "system",
    "field": "sql_field",
}

ConfigSource = str | Path | Sequence[str | Path] | TrainConfig | None
"""A configuration: one or several files, as for `--config`, or an object; None: the defaults."""

Predictions = Mapping[str, str | None] | str | Path
"""SQL by question id (None: no SQL), or a file in any format that the command reads."""


@dataclass(frozen=True)
class Run:
    """A run's folder; `exit_code` is 0 if the run is complete or was stopped with a checkpoint."""

    folder: Path
    exit_code: int = 0

    @property
    def config(self) -> TrainConfig:
        """Return the run's configuration."""
        return configs.load_config(TrainConfig, self.folder / CONFIG)

    @property
    def metrics(self) -> Any:
        """Return a row per step and evaluation: a `pandas.DataFrame` if pandas is installed, else dicts."""
        return _table(self.folder / METRICS)

    @property
    def samples(self) -> Any:
        """Return a row per answer that the run saved in `samples.jsonl`, in the format of `metrics`."""
        return _table(self.folder / SAMPLES)

    def model(self, *overrides: Override) -> Model:
        """Return the trained model, ready for questions."""
        return Model(self.folder, *overrides)

    def evaluate(self, data: str | Path | Questions, *overrides: Override, out: str | Path | None = None) -> Evaluation:
        """Evaluate the trained model on the questions of a benchmark folder or a list."""
        return evaluate(data, None, *overrides, model=self.folder, out=out)


def load_config(config: ConfigSource = None, overrides: Override | Sequence[Override] = ()) -> TrainConfig:
    """Read a configuration from its files, with overrides.

    Raises a one-line InputError for an unreadable file, an unknown key, or an invalid value.
    """
    return _config(config, [overrides] if isinstance(overrides, str | Mapping) else overrides)


def train(
    config: ConfigSource = None,
    *overrides: Override,
    callback: Callback | None = None,
    reward: RewardFunction | None = None,
    examples: Questions | None = None,
    evals: Mapping[str, Questions] | None = None,
) -> Run:
    """Train by GRPO or PPO, after the supervised steps of the section `sft`, and return the run.

    `callback(step, metrics)` is called after each step and each evaluation with its row of `Run.metrics`; a true value
    stops the run after the step, with a checkpoint. `reward(answer)` replaces the recipe's reward with a number, or
    with a `Reward` with named parts. An answer has `text`, `sql`, `example`, `status` and the recipe's `reward`, so
    that `answer.reward.total` plus a term combines both. `examples` (a list or a `load_benchmark`) replace the training
    questions of `data.dir`, and `evals` (such sets by name) its evaluation sets. With `examples` and without `evals`,
    nothing is evaluated. With several processes, each calls its own functions. A resumed run needs the same examples
    and the same `reward`: its code, default arguments and attributes are compared with those at the run's start.

    Raises InputError for invalid input, HealthError for a failed health check, and RunFolderError if the run folder
    cannot be written.
    """
    with _with_parameter_names():
        from jaxrl_sql.training.caller import DIR, CallerInputs

        # `data.dir` must not be empty; DIR replaces it, and nothing is read from it.
        resolved = _config(config, overrides, {} if examples is None else {"data": {"dir": DIR}})
        prepare_process()
        from jaxrl_sql.training import trainer

        resolved = resolve_settings(resolved)
        exit_code = trainer.train(resolved, CallerInputs(callback, reward, examples, evals))
        return Run(Path(resolved.run.dir), exit_code)


class Model:
    """A model that answers questions: the folder of a run or a Hugging Face model, a GGUF file, or a hub name.

    With an `endpoint`, the URL of an OpenAI-compatible server, it is the name of a model on that server. The model is
    loaded at the first question and released by `close` or at the end of `with`. `samples` above 1 samples several
    answers and chooses by majority vote over their results. For a server's database, the prompt shows a sample of its
    rows. `leave_out` names tables and columns ("TABLE", "TABLE.COLUMN") that the sample omits; `stand_in` is a SQLite
    file that replaces the sample. Raises InputError for a missing model.
    """

    def __init__(
        self,
        model: str | Path,
        *overrides: Override,
        recipe: str | None = None,
        samples: int | None = None,
        leave_out: Sequence[str] = (),
        stand_in: str | Path | None = None,
        endpoint: str | None = None,
    ) -> None:
        from jaxrl_sql.inference.ask import Asker
        from jaxrl_sql.inference.evaluation_config import ask_layers

        with _with_parameter_names():
            layers = ask_layers(str(model), overrides, endpoint=endpoint, recipe=recipe, samples=samples)
            self.config = configs.load_config(EvaluateConfig, None, *layers, origin=_ORIGIN)
        self._asker = Asker(policy_spec(self.config), self.config.evaluate, self.config.executor, _BATCH)
        self._leave_out, self._stand_in = leave_out, None if stand_in is None else Path(stand_in)

    def ask(self, database: str | Path, question: str, evidence: str = "") -> Reply:
        """Ask a question about a database (a SQLite file or a server's URL); the reply has `sql` and its `outcome`."""
        return self.answer_many(database, [question], evidence)[0]

    def answer_many(self, database: str | Path, questions: Sequence[str], evidence: str = "") -> list[Reply]:
        """Ask several questions about a database in a batch; raises InputError for an unreadable database."""
        from jaxrl_sql.inference.ask import database_example
        from jaxrl_sql.text2sql.question_sets.hiding import hide_in_example

        with _with_parameter_names():
            visible = database_example(str(database), self._stand_in, self._leave_out)
            example = hide_in_example(visible, self.config.data.hide)
            return self._asker.answer(
                [dataclasses.replace(example, question=question, evidence=evidence) for question in questions]
            )

    def close(self) -> None:
        """Release the model and its executor."""
        self._asker.close()

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()


@dataclass(frozen=True)
class Evaluation:
    """The metrics of an evaluation (`numbers`) by name, a record per question, and warnings about truncated answers.

    A record has the keys of a line of the command's `records.jsonl`, such as `id`, `sql`, `status` and `scores`.
    """

    numbers: Mapping[str, float]
    records: Sequence[Mapping[str, Any]] = field(repr=False)
    warnings: Sequence[str] = ()


def evaluate(  # noqa: PLR0913 - one parameter per option of the command
    data: str | Path | Questions,
    predictions: Predictions | None = None,
    *overrides: Override,
    model: str | Path | None = None,
    endpoint: str | None = None,
    system: str | None = None,
    recipe: str | None = None,
    split: str | None = None,
    sql_field: str | None = None,
    out: str | Path | None = None,
    allow_missing: bool = False,
    allow_extra: bool = False,
) -> Evaluation:
    """Evaluate predictions, or the answers of a `model`, on a benchmark: a folder, a `load_benchmark` or examples.

    With an `endpoint`, the URL of an OpenAI-compatible server, `model` is the name of a model on that server. `system`
    sets prompt, sampling and rule as in a published system's evaluation, `recipe` only the prompt and answer format.
    `split` is the split of a folder, `sql_field` the field of SQL in a predictions file. `allow_missing` excludes
    questions without a prediction, `allow_extra` ignores predictions without a question. `out` keeps the command's
    files, and an interrupted evaluation resumes there. Raises InputError for invalid input, and RunFolderError for a
    full disk.
    """
    from jaxrl_sql.inference.benchmark_sets import InMemoryData
    from jaxrl_sql.inference.evaluation_config import EvaluationRequest, evaluation_layers
    from jaxrl_sql.text2sql.benchmarks import benchmark_of

    has_examples, has_mapping = not isinstance(data, str | Path), isinstance(predictions, Mapping)
    with tempfile.TemporaryDirectory(prefix="jaxrl_sql-") as scratch, _with_parameter_names():
        if split and has_examples:
            raise InputError(f"split {split}: requires a folder, but data is a list of examples")
        if sql_field and (has_mapping or predictions is None):
            raise InputError(f"sql_field {sql_field}: requires a file of predictions")
        memory = InMemoryData(
            benchmark_of(data, "examples") if not isinstance(data, str | Path) else None,
            predictions if isinstance(predictions, Mapping) else None,
        )
        request = EvaluationRequest(
            data=["examples" if has_examples else str(data)],
            predictions=[] if predictions is None else ["predictions" if has_mapping else str(predictions)],
            model=str(model or ""),
            endpoint=endpoint or "",
            system=system or "",
            recipe=recipe or "",
            split=split or "",
            sql_field=sql_field or "",
            out=str(out or Path(scratch, "out")),
            allow_missing=allow_missing,
            allow_extra=allow_extra,
        )
        prepare_process()
        layers = evaluation_layers(request, [{"run.display": "none"}, *overrides], origin=_ORIGIN)
        evaluation = run_evaluation(configs.load_config(EvaluateConfig, None, *layers, origin=_ORIGIN), memory)
        return Evaluation(evaluation.numbers, evaluation.records, evaluation.warnings)


def run_evaluation(config: EvaluateConfig, memory: InMemoryData | None = None) -> EvaluationResult:
    """Evaluate like the command; `memory` holds questions and predictions instead of files.

    Raises InputError for invalid input, and RunFolderError for a full disk.
    """
    from jaxrl_sql.inference.evaluation_config import check_answerer

    check_answerer(config.evaluate, config.model.checkpoint)
    from jaxrl_sql.inference import benchmark_evaluation
    from jaxrl_sql.inference.benchmark_sets import InMemoryData

    cfg = config.evaluate
    with report_unwritable(cfg.out):
        config = resolve_settings(config)
        journal = Path(cfg.out, benchmark_evaluation.JOURNAL)
        config = dataclasses.replace(config, data=with_chat_date(config.data, config.model.checkpoint, journal))
        config_yaml, display = configs.to_yaml(config), config.run.display
        return benchmark_evaluation.evaluate(
            policy_spec(config), cfg, config.executor, config_yaml, display, memory or InMemoryData()
        )


def policy_spec(config: EvaluateConfig | FilterConfig | VerbalConfig) -> PolicySpec:
    """Return the model of a configuration with its prompt and engine settings."""
    run = config.run
    return PolicySpec(
        config.recipe, config.seed, config.data, config.model, config.rollout, config.mesh,
        run.compilation_cache, run.pad_to_max,
    )  # fmt: skip


@contextmanager
def _with_parameter_names() -> Iterator[None]:
    """Raise InputErrors with parameter names instead of a command's options, and an InputError if JAX is missing."""
    try:
        with require_jax():
            yield
    except InputError as error:
        text = _OPTION.sub(_parameter, str(error))
        if text == str(error):
            raise
        raise InputError(text) from error


def _parameter(option: re.Match[str]) -> str:
    name = option[1]
    return _PARAMETERS.get(name, name.replace("-", "_")) if name else option[0]


def _config(config: ConfigSource, overrides: Sequence[Override], defaults: Fields | None = None) -> TrainConfig:
    if not isinstance(config, TrainConfig):
        return configs.load_config(TrainConfig, config, overrides, defaults, origin=_ORIGIN)
    # A configuration object explicitly names its recipe, also if that is code.
    values = [dataclasses.asdict(config), defaults or {}, {"recipe": config.recipe}]
    return configs.load_config(TrainConfig, None, [*values, *overrides], origin=_ORIGIN)


def _rows(path: Path) -> list[dict[str, Any]]:
    """Return the objects of a JSON-lines file, without an incomplete last line of a killed run.

    Only a newline ends a line, because texts may hold other line separators. Raises InputError for an unreadable file.
    """
    try:
        *lines, last_line = path.read_text(encoding="utf-8", errors="replace").split("\n")
    except OSError as error:  # a run that has not started, or an incomplete copy
        raise InputError(f"{path}: {error.strerror or error}") from error
    rows = []
    for number, line in enumerate(lines, 1):
        try:
            rows.append(json.loads(line))
        except ValueError as error:
            raise InputError(f"{path}: line {number} is damaged: not JSON") from error
    with suppress(ValueError):
        rows.append(json.loads(last_line))
    return rows


def _table(path: Path) -> Any:
    rows = _rows(path)
    try:
        return import_module("pandas").DataFrame(rows)
    except ImportError:
        return rows
