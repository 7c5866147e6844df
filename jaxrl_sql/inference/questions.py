"""The inputs of a run by its configuration: questions, prompts, tokenizer and the model's shape.

A gold is a question's reference query. A style turns a question into a prompt.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any, NamedTuple

from jaxrl_sql.config import DataConfig, ExecutorConfig, FilterSettings, ModelConfigSection, SftConfig
from jaxrl_sql.datagen.synth import train_tokenizer
from jaxrl_sql.inference.prompt_lengths import PromptShortener, length_lines
from jaxrl_sql.inference.training_set import (
    configure_questions,
    databases_to_generate,
    load_split_questions,
    make_synthetic,
    open_question_stream,
    process_caller_questions,
    training_questions,
)
from jaxrl_sql.models import ModelConfig
from jaxrl_sql.models.formats.hf import load_config as load_model_config
from jaxrl_sql.models.formats.hf import load_tokenizer
from jaxrl_sql.models.shapes import new_config, published_config
from jaxrl_sql.runtime.display import Display
from jaxrl_sql.runtime.progress import Tally, quantity
from jaxrl_sql.runtime.tokenizer_files import save_tokenizer
from jaxrl_sql.text2sql.benchmarks import Benchmark, make_unique_name, summarize_skipped
from jaxrl_sql.text2sql.benchmarks.benchmark import label_notes
from jaxrl_sql.text2sql.env.executor import Executor
from jaxrl_sql.text2sql.prompts.dialects import check_translation_support
from jaxrl_sql.text2sql.prompts.prompts import PromptSet, Pruning, make_prompts, prompt_texts
from jaxrl_sql.text2sql.prompts.styles import PromptStyle
from jaxrl_sql.text2sql.question_sets.filters import by_gold, usable_golds
from jaxrl_sql.text2sql.question_sets.hiding import check_hide
from jaxrl_sql.text2sql.question_sets.stream import SAMPLE, StreamedQuestions
from jaxrl_sql.text2sql.rewards.extract import policy_text
from jaxrl_sql.types import DIALECTS, Example, InputError


class CallerQuestions(NamedTuple):
    """Sets that the caller of the Python API passed instead of `data.train` and `data.evals`; None: read the folder."""

    train: Benchmark | None = None
    evals: Mapping[str, Benchmark] | None = None


def load_questions(
    data: DataConfig,
    sft: SftConfig,
    executor_config: ExecutorConfig,
    executor: Executor,
    display: Display,
    caller_questions: CallerQuestions = CallerQuestions(),  # noqa: B008 - a constant
) -> tuple[Sequence[Example], dict[str, Benchmark]]:
    """Read the splits, generating synthetic ones first, and skip questions whose gold is unusable for training.

    Return the training questions and the evaluation sets by name. If the training set has more questions than
    `data.stream_above`, it is streamed: a question is read, and its gold run, when it is needed. Sets in
    `caller_questions` are not read from a folder. The name of an evaluation set is the last part of its path, as in
    `evaluate`.
    """
    if data.source == "synth":
        count = databases_to_generate(data)
        activity = f"generating databases and questions in {data.dir}"
        with display.task(activity, count, "databases", is_announced=count > 0) as on_progress:
            was_present = make_synthetic(data, on_progress)
        display.note(f"data: {data.dir} {'already exists' if was_present else 'was generated'} (seed {data.seed})")
    names = data.evals if caller_questions.evals is None else [*caller_questions.evals]
    splits = dict.fromkeys((*names, data.train))
    with display.task(f"reading {', '.join(splits)} from {data.dir}", len(splits), "splits") as on_progress:
        loaded, streamed = _read_splits(data, executor_config, caller_questions, Tally(on_progress).add)
    check_hide(data.hide, (example.db_path for benchmark in loaded.values() for example in benchmark.examples))
    for benchmark in loaded.values():
        check_translation_support(benchmark.examples, executor_config.sqlite_version)
    if streamed is None:
        _report_dialects(display.note, loaded[data.train].examples)
    for name, benchmark in loaded.items():
        _report_skipped(display.note, name, benchmark.skipped, benchmark.lines)
    for line in label_notes((name, benchmark.notes) for name, benchmark in loaded.items()):
        display.note(line)
    evals: dict[str, Benchmark] = {}
    for split in dict.fromkeys(names):
        evals[make_unique_name(Path(split).name or split, evals)] = loaded[split]
    if data.select.limit_eval:  # the training split, too, if it is evaluated
        evals = {
            name: benchmark._replace(examples=benchmark.examples[: data.select.limit_eval])
            for name, benchmark in evals.items()
        }
    if streamed is not None:
        return _set_gold_check(data, sft, streamed, executor, display), evals
    train_examples = loaded[data.train].examples
    with display.task("running the golds", len(train_examples), "questions") as on_progress:
        gold_filter = FilterSettings(empty_gold=data.select.drop_empty_gold)
        train, dropped = by_gold(executor, train_examples, gold_filter, on_progress)
    lines = loaded[data.train].lines
    places = {item.uid: lines.get(item.uid, item.uid) for item in dropped}
    places |= {item.uid: f"{places[item.uid]} ({item.error})" for item in dropped if item.error}
    _report_skipped(display.note, data.train, [(item.uid, item.reason) for item in dropped], places)
    if not train:
        raise InputError(
            f"{data.dir}/{data.train}: no question has a gold that runs within executor.vm_steps and returns rows"
        )
    return train, evals


def _read_splits(
    data: DataConfig, executor_config: ExecutorConfig, caller_questions: CallerQuestions, on_read: Callable[[], None]
) -> tuple[dict[str, Benchmark], StreamedQuestions | None]:
    """Read the splits by name; return them, and the training set if it is streamed (else None).

    A streamed training set is among the splits only if it is an evaluation set, too, and then only its first questions.

    `on_read` is called after each split.
    """
    addresses, limit = executor_config.databases, data.select.limit_eval
    loaded, streamed = dict[str, Benchmark](), None
    for name in dict.fromkeys(data.evals if caller_questions.evals is None else caller_questions.evals):
        if caller_questions.evals is not None:
            loaded[name] = configure_questions(data, caller_questions.evals[name], limit, addresses)
        elif name != data.train:
            loaded[name] = load_split_questions(data, name, limit, addresses)
        if name != data.train:
            on_read()
    if caller_questions.train is not None:
        loaded[data.train] = process_caller_questions(data, caller_questions.train, addresses)
    elif (streamed := open_question_stream(data, addresses, executor_config.sqlite_version)) is None:
        loaded[data.train] = training_questions(data, addresses)
    elif data.train in data.evals and caller_questions.evals is None:
        loaded[data.train] = load_split_questions(data, data.train, limit or SAMPLE, addresses)
    on_read()
    return loaded, streamed


def _report_dialects(note: Callable[[str], object], examples: Sequence[Example]) -> None:
    counts = Counter(
        f"{DIALECTS[example.dialect]}{'' if example.engine_url else ', translated'}"
        for example in examples
        if example.dialect != "sqlite"
    )
    if counts:
        shares = ", ".join(f"{count:,} in {name}" for name, count in sorted(counts.items()))
        others = "; the others are in SQLite's dialect" if counts.total() < len(examples) else ""
        note(f"data: of {len(examples):,} training questions, {shares}{others}")


def _set_gold_check(
    data: DataConfig, sft: SftConfig, streamed: StreamedQuestions, executor: Executor, display: Display
) -> StreamedQuestions:
    """Make a streamed set check the golds as it is read.

    Raises InputError if there is a supervised phase, which needs all questions in memory.
    """
    if sft.steps or sft.epochs:
        raise InputError(
            f"{data.dir}/{data.train}: the supervised phase holds its questions in memory, and there are "
            f"{len(streamed):,}, over data.stream_above={data.stream_above}: set data.select.limit_train or "
            f"data.select.include_ids"
        )
    display.note(
        f"{data.train}: {len(streamed):,} questions are streamed: each is read, and its gold run, when it is needed; "
        "questions with an unusable gold are replaced by the next"
    )

    def gold_error(example: Example) -> str:
        return next((reason for _, reason in usable_golds(executor, [example], data.select.drop_empty_gold)[1]), "")

    streamed.check = gold_error
    streamed.report = lambda line: display.note(f"{data.train}: {line}")
    return streamed


def make_prompt_set(
    name: str,
    examples: Sequence[Example],
    style: PromptStyle,
    tokenizer: Any,
    max_tokens: int,
    display: Display,
    pruning: Pruning | None = None,
    shortening: PromptShortener | None = None,
) -> PromptSet:
    """Make prompts of up to `max_tokens` tokens, and report the skipped ones with settings that shorten them.

    `pruning` removes columns from prompts that are too long (`data.prune`). Without `shortening` no settings are
    suggested.
    """
    with display.task(f"tokenizing the prompts of {name}", len(examples), "questions") as on_progress:
        prompts = make_prompts(examples, style, tokenizer, max_tokens, pruning, on_progress)
        lines = length_lines(prompts, max_tokens, examples, shortening)
    return check_prompts(name, prompts, max_tokens, display.note, lines)


def check_prompts(
    name: str, prompts: PromptSet, max_tokens: int, note: Callable[[str], None], lines: Sequence[str] = ()
) -> PromptSet:
    """Return a split's prompts and report skipped, pruned and damaged ones; raises InputError if none fits.

    `lines` report the prompt lengths of a set with skipped prompts, and settings that shorten prompts.
    """
    if not prompts.prompts and lines:
        raise InputError(f"{name}: no prompt fits data.max_prompt_tokens={max_tokens}: {'; '.join(lines)}")
    _report_skipped(note, name, prompts.skipped)
    for line in lines:
        note(f"{name}: {line}")
    if prompts.pruned:
        subject = quantity(len(prompts.pruned), "prompts", "are")
        note(f"{name}: {subject} pruned to {max_tokens} tokens, such as {prompts.pruned[0]}")
    if prompts.errors:
        note(
            f"{name}: {quantity(len(prompts.errors), 'description files', 'are')} damaged, such as {prompts.errors[0]}"
        )
    if not prompts.prompts:
        raise InputError(
            f"{name}: no prompt fits data.max_prompt_tokens={max_tokens}; data.prompt=compact makes the shortest ones"
        )
    return prompts


def _report_skipped(
    note: Callable[[str], None],
    name: str,
    skipped: Sequence[tuple[str, str]],
    places: Mapping[str, str] = {},
) -> None:
    for line in summarize_skipped(skipped, places):
        note(f"{name}: {line}")


def open_tokenizer(
    data: DataConfig, checkpoint: str, folder: Path, train: Sequence[Example], style: PromptStyle, is_new: bool
) -> Any:
    """Load the tokenizer of `data`, a checkpoint or the synthetic data, or train one on the training split.

    A trained tokenizer is saved in the run's folder. `is_new`: replace the one that an earlier start left there, whose
    settings may have been others.
    """
    synthetic = Path(data.dir) / "tokenizer"
    if checkpoint or data.tokenizer.path:
        return load_tokenizer(data.tokenizer.path or checkpoint)
    if data.source == "synth":
        return load_tokenizer(synthetic)
    saved = folder / "tokenizer"
    if is_new or not saved.exists():
        examples = train.sample() if isinstance(train, StreamedQuestions) else train
        texts = [
            "".join((*prompt_texts(example, style, None), policy_text(style.answer(example)))) for example in examples
        ]
        save_tokenizer(train_tokenizer(texts, data.tokenizer.vocab_size), saved)
    return load_tokenizer(saved)


def model_config(model: ModelConfigSection, tokenizer: Any) -> ModelConfig:
    """Return the ModelConfig of the checkpoint, or of a new model.

    Raises InputError if both are set, and as `check_vocab_size` does.
    """
    if model.checkpoint and model.shape:
        raise InputError(
            f"model.shape={model.shape} is only for new models and plans: it cannot be combined with model.checkpoint"
        )
    if model.checkpoint:
        config, setting = load_model_config(model.checkpoint), f"model.checkpoint={model.checkpoint}"
    elif model.shape:
        config, setting = published_config(model.shape), f"model.shape={model.shape}"
    else:
        return new_config(model, _last_token(tokenizer) + 1)
    check_vocab_size(tokenizer, config, setting)
    return config


def check_vocab_size(tokenizer: Any, config: ModelConfig, setting: str) -> None:
    """Raise InputError if the tokenizer has ids beyond the model's vocabulary.

    `setting` names the model in the message. The id of the image token may be beyond it, as in Gemma 3's text models,
    because prompts do not contain it.
    """
    tokens = _last_token(tokenizer, exclude=getattr(tokenizer, "image_token", None)) + 1
    if tokens > config.vocab_size:
        raise InputError(
            f"{setting} has {config.vocab_size} tokens, the tokenizer {tokens}: "
            "set data.tokenizer.path to a matching one"
        )


def _last_token(tokenizer: Any, exclude: str | None = None) -> int:
    """Return the largest token id, which may exceed the number of tokens."""
    return max(i for text, i in tokenizer.get_vocab().items() if text != exclude)
