"""Train, ask and evaluate from Python, or in a notebook.

    import jaxrl_sql as jx

    run = jx.train("configs/quickstart.yaml", "grpo.steps=20")
    run.metrics
    with run.model() as model:
        print(model.ask("shop.sqlite", "How many orders were late?").sql)
    jx.evaluate("data/dev", predictions={"dev_0": "SELECT 1"}, allow_missing=True).numbers

What the commands tell in one line and with an exit code is raised here, as an exception of `types`.
"""

from __future__ import annotations

import argparse
import dataclasses
import io
import json
import tempfile
from collections.abc import Iterator, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import ExitStack, contextmanager, redirect_stdout, suppress
from dataclasses import dataclass, field
from importlib import import_module
from pathlib import Path
from typing import Any, Self

from jaxrl_sql.commands import ask as asking
from jaxrl_sql.config import TrainConfig, load_config
from jaxrl_sql.runtime.folder import CONFIG
from jaxrl_sql.runtime.model_locator import fetched
from jaxrl_sql.types import InputError

_AT_ONCE = 16
_PARAMETERS = {"--allow-missing": "allow_missing=True", "--allow-extra": "allow_extra=True"}

Files = str | Path | Sequence[str | Path] | TrainConfig | None
"""A configuration: a file or several, as `--config` takes them, or a value."""


@dataclass(frozen=True)
class Run:
    """A run's folder, as it is now; `exit_code` is the command's: 0 done, or stopped with a checkpoint."""

    folder: Path
    exit_code: int = 0

    @property
    def config(self) -> TrainConfig:
        """Return what it was run with."""
        return load_config(self.folder / CONFIG)

    @property
    def metrics(self) -> Any:
        """Return a row for each step and evaluation: a `pandas.DataFrame` where pandas is there, else dicts."""
        return _table(self.folder / "metrics.jsonl")

    @property
    def samples(self) -> Any:
        """Return the answers that were kept, as `metrics` does."""
        return _table(self.folder / "samples.jsonl")

    def model(self, *overrides: str) -> Model:
        """Return the trained model, to be asked."""
        return Model(self.folder, *overrides)

    def evaluate(self, data: str | Path, *overrides: str, out: str | Path | None = None) -> Evaluation:
        """Let the trained model answer a benchmark's questions, and judge it."""
        return evaluate(data, None, *overrides, model=self.folder, out=out)


def train(config: Files = None, *overrides: str) -> Run:
    """Train as `jaxrl-sql train` does, and return the run; `overrides` are `key.sub=value`.

    Raises InputError for an input that cannot be used, HealthError for a run that learns nothing any more, and
    RunFolderError where its folder cannot be written.
    """
    from jaxrl_sql.commands.running import prepare_process  # noqa: PLC0415 - JAX loads when it is needed
    from jaxrl_sql.training.grpo import train as run  # noqa: PLC0415

    prepare_process()
    chosen = fetched(_config(config, overrides))
    return Run(Path(chosen.run.dir), run(chosen))


class Model:
    """A model that answers questions: a run's or a Hugging Face folder, a GGUF file, or a name of the hub.

    It is loaded with the first question and kept until it is closed, by `close` or at the end of `with`. `samples`
    above 1 asks so often, and takes the answer that most agree on. A server's database is shown to the model without
    the tables and columns of `leave_out`, or by the SQLite file `stand_in`.
    """

    def __init__(
        self,
        model: str | Path,
        *overrides: str,
        recipe: str | None = None,
        samples: int | None = None,
        leave_out: Sequence[str] = (),
        stand_in: str | Path | None = None,
    ) -> None:
        given = argparse.Namespace(model=str(model), recipe=recipe, n=samples, config=None, endpoint="")
        self.config = asking.configuration(given, overrides)
        self._open = ExitStack()
        self._ask: asking.Ask | None = None
        self._leave_out, self._stand_in = leave_out, None if stand_in is None else Path(stand_in)
        # The mesh that JAX has set is a thread's: models that are open side by side have one each, the caller none.
        self._thread = ThreadPoolExecutor(1, thread_name_prefix="jaxrl_sql-model")

    def ask(self, database: str | Path, question: str, evidence: str = "") -> asking.Reply:
        """Ask a database a question: a SQLite file, or the URL of a server's; the reply has `sql` and its `outcome`."""
        return self.answer_many(database, [question], evidence)[0]

    def answer_many(self, database: str | Path, questions: Sequence[str], evidence: str = "") -> list[asking.Reply]:
        """Ask a database several questions, which are answered side by side."""
        return self._thread.submit(self._answer, database, questions, evidence).result()

    def _answer(self, database: str | Path, questions: Sequence[str], evidence: str) -> list[asking.Reply]:
        from jaxrl_sql.commands.running import prepare_process  # noqa: PLC0415
        from jaxrl_sql.text2sql.question_sets.hiding import hide_in_example  # noqa: PLC0415

        shown = asking.database_of(str(database), self._stand_in, self._leave_out)
        example = hide_in_example(shown, self.config.data.hide)
        if self._ask is None:
            prepare_process()
            self._ask = self._open.enter_context(asking.opened(fetched(self.config), _AT_ONCE))
        return self._ask([dataclasses.replace(example, question=question, evidence=evidence) for question in questions])

    def close(self) -> None:
        """Let the model and its executor go."""
        self._thread.submit(self._open.close).result()
        self._ask = None

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()


@dataclass(frozen=True)
class Evaluation:
    """What an evaluation found: its `numbers` by name, and a record a question."""

    numbers: Mapping[str, float]
    records: Sequence[Mapping[str, Any]] = field(repr=False)


def evaluate(
    data: str | Path,
    predictions: Mapping[str, str | None] | str | Path | None = None,
    *overrides: str,
    model: str | Path | None = None,
    split: str | None = None,
    out: str | Path | None = None,
    allow_missing: bool = False,
    allow_extra: bool = False,
) -> Evaluation:
    """Judge predictions, or a model's answers, on a benchmark's folder, as `jaxrl-sql evaluate` does.

    `predictions` are SQL by question id, or a file of any form that the command takes. `allow_missing` leaves out
    questions without a prediction, `allow_extra` predictions for no question. With `out` the command's files stay
    there, and interrupted work resumes. Raises InputError for an input that cannot be used.
    """
    command = import_module("jaxrl_sql.commands.evaluate")  # of this name the package has this function
    from jaxrl_sql.inference import benchmark_evaluation  # noqa: PLC0415
    from jaxrl_sql.text2sql.evals.side_by_side import METRICS, RECORDS  # noqa: PLC0415 - slow, and needed when work begins

    with tempfile.TemporaryDirectory(prefix="jaxrl_sql-") as scratch:
        file = predictions
        if isinstance(predictions, Mapping):
            file = Path(scratch, "predictions.jsonl")
            lines = (json.dumps({"id": uid, "pred_sql": sql}) for uid, sql in predictions.items())
            file.write_text("".join(f"{line}\n" for line in lines), encoding="utf-8")
        folder = Path(out) if out else Path(scratch, "out")
        given = argparse.Namespace(
            data=[str(data)], predictions=[str(file)] if file else [], model=str(model) if model else None, out=folder,
            split=split, config=None, overrides=["run.display=none", *overrides], recipe=None, system=None,
            sql_field="pred_sql" if isinstance(predictions, Mapping) else None, allow_missing=allow_missing,
            allow_extra=allow_extra,
        )  # fmt: skip
        with _in_python({f"{scratch}/predictions.jsonl": "predictions"}):
            config = command.configuration(given)
            command.check_answerer(config)
            with redirect_stdout(io.StringIO()):
                benchmark_evaluation.evaluate(fetched(config))
        numbers = json.loads((folder / METRICS).read_text(encoding="utf-8"))
        return Evaluation(numbers, _rows(folder / RECORDS))


@contextmanager
def _in_python(names: Mapping[str, str]) -> Iterator[None]:
    """Raise a command's InputError with parameters in place of options, and with other names of files."""
    try:
        yield
    except InputError as error:
        text = str(error)
        for name, parameter in {**_PARAMETERS, **names}.items():
            text = text.replace(name, parameter)
        raise InputError(text) from error


def _config(config: Files, overrides: Sequence[str]) -> TrainConfig:
    if not isinstance(config, TrainConfig):
        return load_config(config, overrides)
    # Whoever gives a value names its recipe with it, code or not.
    return load_config(None, [f"recipe={config.recipe}", *overrides], beneath=dataclasses.asdict(config))


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
