"""The training questions that a configuration names, as they are asked: nothing is left out for its gold yet."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from pathlib import Path

from jaxrl_sql.config import DataConfig
from jaxrl_sql.data.benchmarks import Benchmark, load_split
from jaxrl_sql.data.dialects import in_dialects
from jaxrl_sql.data.filters import keep_only
from jaxrl_sql.data.shots import Shots
from jaxrl_sql.data.stream import Streamed, open_stream
from jaxrl_sql.datagen.synth import SynthSpec, generate
from jaxrl_sql.types import Example, InputError


def training_questions(data: DataConfig) -> Benchmark:
    """Load `data.train`, generated first where it is synthetic, down to `data.include_ids` and `data.limit_train`.

    `data.mysql_share` of them ask for MySQL. Raises InputError as `load_split` does, and for ids that are not there.
    """
    if data.source == "synth":
        generate(Path(data.dir), SynthSpec(seed=data.seed))
    if data.include_ids and (streamed := _huge(data)):
        found = Benchmark(data.train, "", tuple(keep_only(streamed.usable(), data.include_ids, data.limit_train)))
    else:
        found = load_split(data.dir, data.train, 0 if data.include_ids else data.limit_train)
        if data.include_ids:
            found = found._replace(examples=tuple(keep_only(found.examples, data.include_ids, data.limit_train)))
    return found._replace(examples=tuple(in_dialects(found.examples, data.mysql_share)))


def streamed_questions(data: DataConfig) -> Streamed | None:
    """Open `data.train` to be read by number, where more than `data.stream_above` of its questions are asked for.

    None where they are fewer, and where `data.include_ids` chooses among them: those are loaded. The first opening
    looks the file through, which takes a minute for ten gigabytes.
    """
    if data.include_ids or 0 < data.limit_train <= data.stream_above:
        return None
    streamed = _huge(data)
    if streamed is None:
        return None
    share = data.mysql_share
    return streamed.changed((lambda one: in_dialects([one], share)[0]) if share else None, data.limit_train)


def choose_shots(data: DataConfig) -> Callable[[Example], Sequence[Example]] | None:
    """Return what chooses `data.shots` examples for a question among the training questions; None for none.

    They are those of `data.train` down to `data.include_ids` and `data.limit_train`, the same for every command, and no
    gold is run for it. Raises InputError where they are not there, or too many to be held in memory.
    """
    if not data.shots:
        return None
    if not Path(data.dir).exists():
        raise InputError(
            f"data.shots={data.shots} shows questions of the training set, and {data.dir} is not there: name "
            "data.source, data.dir and data.train"
        )
    if streamed_questions(data) is not None:
        raise InputError(
            f"data.shots={data.shots} holds the training questions in memory, and {data.dir}/{data.train} has over "
            f"data.stream_above={data.stream_above}: choose by data.limit_train or data.include_ids"
        )
    return Shots(training_questions(data).examples, data.shots).choose


def _huge(data: DataConfig) -> Streamed | None:
    if data.source == "synth" or not data.stream_above or not Path(data.dir).exists():
        return None
    return open_stream(data.dir, data.train, data.stream_above)
