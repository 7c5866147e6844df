"""Train, ask and evaluate from Python; the commands call the same functions.

    import jaxrl_sql as jx

    run = jx.train("configs/quickstart.yaml", {"grpo.steps": 20}, callback=lambda step, metrics: step >= 10)
    run.metrics
    with run.model() as model:
        print(model.ask("shop.sqlite", "How many orders were late?").sql)
    jx.evaluate("data/dev", predictions={"dev_0": "SELECT 1"}, allow_missing=True).numbers

Overrides lie over a configuration's files: mappings with nested or dotted keys, or texts such as "grpo.steps=20". An
error of a command is an exception of `types` here, which names parameters in place of options.
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
from jaxrl_sql.inference.process import needing_jax, prepare_process
from jaxrl_sql.inference.prompt_form import prepared
from jaxrl_sql.runtime.folder import CONFIG, METRICS, SAMPLES, goes_on
from jaxrl_sql.runtime.model_locator import with_date
from jaxrl_sql.types import Fields, InputError

if TYPE_CHECKING:
    from jaxrl_sql.inference.ask import Reply
    from jaxrl_sql.inference.benchmark_evaluation import Evaluated
    from jaxrl_sql.inference.benchmark_sets import Memory
    from jaxrl_sql.text2sql.rewards.score import RewardFunction
    from jaxrl_sql.training.caller import Callback, Questions

_AT_ONCE = 16
_ORIGIN = "overrides"
# An option in an error, but not in a command line that the error advises.
_OPTION = re.compile(r"`[^`]*`|(?<![\w-])--([a-z]+(?:-[a-z]+)*)")
_PARAMETERS = {
    "db": "database",
    "allow-missing": "allow_missing=True",
    "allow-extra": "allow_extra=True",
    "as": "system",
    "field": "sql_field",
}

Files = str | Path | Sequence[str | Path] | TrainConfig | None
"""A configuration: a file or several, as `--config` takes them, or a value."""

Predictions = Mapping[str, str | None] | str | Path
"""SQL by question id (None: the model gave none), or a file of any form that the command reads."""


@dataclass(frozen=True)
class Run:
    """A run's folder; `exit_code` is the command's: 0 once it is done, or was stopped with a checkpoint."""

    folder: Path
    exit_code: int = 0

    @property
    def config(self) -> TrainConfig:
        """Return the run's configuration."""
        return configs.load_config(TrainConfig, self.folder / CONFIG)

    @property
    def metrics(self) -> Any:
        """Return a row per step and evaluation: a `pandas.DataFrame` where pandas is installed, else dicts."""
        return _table(self.folder / METRICS)

    @property
    def samples(self) -> Any:
        """Return the answers that were kept, in the form of `metrics`."""
        return _table(self.folder / SAMPLES)

    def model(self, *overrides: Override) -> Model:
        """Return the trained model, ready for questions."""
        return Model(self.folder, *overrides)

    def evaluate(self, data: str | Path | Questions, *overrides: Override, out: str | Path | None = None) -> Evaluation:
        """Let the trained model answer the questions of a benchmark's folder or of a list, and judge the answers."""
        return evaluate(data, None, *overrides, model=self.folder, out=out)


def load_config(config: Files = None, overrides: Override | Sequence[Override] = ()) -> TrainConfig:
    """Read a configuration from its files, with overrides on top.

    Raises InputError, in one line, for a file that cannot be read, an unknown key, and a value that is not allowed.
    """
    return _config(config, [overrides] if isinstance(overrides, str | Mapping) else overrides)


def train(
    config: Files = None,
    *overrides: Override,
    callback: Callback | None = None,
    reward: RewardFunction | None = None,
    examples: Questions | None = None,
    evals: Mapping[str, Questions] | None = None,
) -> Run:
    """Train by GRPO or PPO, after the supervised steps of the section `sft`, and return the run.

    `callback(step, metrics)` is called after each step and each evaluation with its row of `Run.metrics`; a true value
    stops the run after the step, with a checkpoint. `reward(answer)` replaces the recipe's reward by a number, or by a
    `Reward` with its own parts; an answer has `text`, `sql`, `example`, `status` and the recipe's `reward`, so that
    `answer.reward.total` plus a term joins both. `examples`, a list or a `load_benchmark`, are trained on and `evals`,
    sets of that kind by name, evaluated on in place of the folder `data.dir`; examples without `evals` are trained on
    without evaluations. Of several processes each calls its own functions. A resumed run needs the same examples and
    `reward`, whose code, arguments and attributes are compared.

    Raises InputError for an input that cannot be used, HealthError for a run that has stopped learning, and
    RunFolderError where its folder cannot be written.
    """
    with _in_python():
        from jaxrl_sql.training.caller import DIR, CallerInputs

        chosen = _config(config, overrides, {} if examples is None else {"data": {"dir": DIR}})
        prepare_process()
        from jaxrl_sql.training import trainer

        chosen = prepared(chosen)
        exit_code = trainer.train(chosen, CallerInputs(callback, reward, examples, evals))
        return Run(Path(chosen.run.dir), exit_code)


class Model:
    """A model that answers questions: a run's or a Hugging Face folder, a GGUF file, or a name of the hub.

    With an `endpoint`, the URL of a server of OpenAI's form, it is the name of a model there. It is loaded with the
    first question and kept until it is closed, by `close` or at the end of `with`. `samples` above 1 asks so often, and
    takes the answer that most agree on. The model is shown a server's database without the tables and columns of
    `leave_out`, or the SQLite file `stand_in`. Raises InputError for a model that is not there.
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

        with _in_python():
            layers = ask_layers(str(model), overrides, endpoint=endpoint, recipe=recipe, samples=samples)
            self.config = configs.load_config(EvaluateConfig, None, *layers, origin=_ORIGIN)
        self._asker = Asker(policy_spec(self.config), self.config.evaluate, self.config.executor, _AT_ONCE)
        self._leave_out, self._stand_in = leave_out, None if stand_in is None else Path(stand_in)

    def ask(self, database: str | Path, question: str, evidence: str = "") -> Reply:
        """Ask a database a question: a SQLite file, or the URL of a server's; the reply has `sql` and its `outcome`."""
        return self.answer_many(database, [question], evidence)[0]

    def answer_many(self, database: str | Path, questions: Sequence[str], evidence: str = "") -> list[Reply]:
        """Ask a database several questions at once; raises InputError for a database that cannot be read."""
        from jaxrl_sql.inference.ask import database_of
        from jaxrl_sql.text2sql.question_sets.hiding import hide_in_example

        with _in_python():
            shown = database_of(str(database), self._stand_in, self._leave_out)
            example = hide_in_example(shown, self.config.data.hide)
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
    """An evaluation's `numbers` by name, a record per question, and warnings on answers that are incomplete."""

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
    """Judge predictions, or the answers of a `model`, on a benchmark: a folder, a `load_benchmark` or examples.

    With an `endpoint`, the URL of a server of OpenAI's form, `model` is the name of a model there.
    `system` takes prompt, sampling and rule of a published system's evaluation, `recipe` its form of answers alone;
    `split` is the part of a folder, `sql_field` the field of SQL in a file of predictions. `allow_missing` leaves out
    questions without a prediction, `allow_extra` predictions for no question. With `out` the command's files stay
    there, and interrupted work resumes. Raises InputError for an input that cannot be used, and RunFolderError for a
    full disk.
    """
    from jaxrl_sql.inference.benchmark_sets import Memory
    from jaxrl_sql.inference.evaluation_config import EvaluationRequest, evaluation_layers
    from jaxrl_sql.text2sql.benchmarks import benchmark_of

    is_listed, is_mapped = not isinstance(data, str | Path), isinstance(predictions, Mapping)
    with tempfile.TemporaryDirectory(prefix="jaxrl_sql-") as scratch, _in_python():
        if split and is_listed:
            raise InputError(f"split {split}: is for a folder, and data is a list of examples")
        if sql_field and (is_mapped or predictions is None):
            raise InputError(f"sql_field {sql_field}: is for a file of predictions")
        memory = Memory(
            benchmark_of(data, "examples") if not isinstance(data, str | Path) else None,
            predictions if isinstance(predictions, Mapping) else None,
        )
        request = EvaluationRequest(
            data=["examples" if is_listed else str(data)],
            predictions=[] if predictions is None else ["predictions" if is_mapped else str(predictions)],
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


def run_evaluation(config: EvaluateConfig, memory: Memory | None = None) -> Evaluated:
    """Evaluate as the command does; `memory` has questions and predictions in place of files.

    Raises InputError for an input that cannot be used, and RunFolderError for a full disk.
    """
    from jaxrl_sql.inference.evaluation_config import check_answerer

    check_answerer(config.evaluate, config.model.checkpoint)
    from jaxrl_sql.inference import benchmark_evaluation
    from jaxrl_sql.inference.benchmark_sets import Memory

    cfg = config.evaluate
    with goes_on(cfg.out):
        config = prepared(config)
        journal = Path(cfg.out, benchmark_evaluation.JOURNAL)
        config = dataclasses.replace(config, data=with_date(config.data, config.model.checkpoint, journal))
        text, display = configs.to_yaml(config), config.run.display
        return benchmark_evaluation.evaluate(
            policy_spec(config), cfg, config.executor, text, display, memory or Memory()
        )


def policy_spec(config: EvaluateConfig | FilterConfig | VerbalConfig) -> PolicySpec:
    """Return the model of a configuration and how it is asked."""
    run = config.run
    return PolicySpec(
        config.recipe, config.seed, config.data, config.model, config.rollout, config.mesh,
        run.compilation_cache, run.pad_to_max,
    )  # fmt: skip


@contextmanager
def _in_python() -> Iterator[None]:
    """Raise an InputError with names of parameters in place of a command's options, and one where JAX is absent."""
    try:
        with needing_jax():
            yield
    except InputError as error:
        text = _OPTION.sub(_parameter, str(error))
        if text == str(error):
            raise
        raise InputError(text) from error


def _parameter(option: re.Match[str]) -> str:
    name = option[1]
    return _PARAMETERS.get(name, name.replace("-", "_")) if name else option[0]


def _config(config: Files, overrides: Sequence[Override], beneath: Fields | None = None) -> TrainConfig:
    if not isinstance(config, TrainConfig):
        return configs.load_config(TrainConfig, config, overrides, beneath, origin=_ORIGIN)
    # Whoever passes a value names its recipe with it, code or not.
    values = [dataclasses.asdict(config), beneath or {}, {"recipe": config.recipe}]
    return configs.load_config(TrainConfig, None, [*values, *overrides], origin=_ORIGIN)


def _rows(path: Path) -> list[dict[str, Any]]:
    """Return the objects of a JSON-lines file without the line that a killed run was writing.

    Lines end at a newline alone: a text may hold other ends of lines as they are. Raises InputError for a file that
    cannot be read.
    """
    try:
        *lines, torn = path.read_text(encoding="utf-8", errors="replace").split("\n")
    except OSError as error:  # a run that has not begun, or a copy of a part of its folder
        raise InputError(f"{path}: {error.strerror or error}") from error
    rows = []
    for number, line in enumerate(lines, 1):
        try:
            rows.append(json.loads(line))
        except ValueError as error:
            raise InputError(f"{path}: line {number} is damaged: it is no JSON") from error
    with suppress(ValueError):
        rows.append(json.loads(torn))
    return rows


def _table(path: Path) -> Any:
    rows = _rows(path)
    try:
        return import_module("pandas").DataFrame(rows)
    except ImportError:
        return rows
