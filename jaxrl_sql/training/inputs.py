"""Hashes of the files and questions that a run reads; it resumes only with the same ones.

A checkpoint holds no base of adapters, no frozen weights, no questions and no databases: they are read again when the
run resumes, and a path does not identify its content. Files that settings name are read whole; of databases
`files_identity` reads large ones at a few hundred places.
"""

from __future__ import annotations

import hashlib
import json
import re
from collections.abc import Iterator, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

from jaxrl_sql.config import DataConfig
from jaxrl_sql.inference.fingerprint import digest_of, digests
from jaxrl_sql.runtime.progress import ProgressCallback, Tally, no_progress
from jaxrl_sql.text2sql.prompts.prompts import PromptSet
from jaxrl_sql.text2sql.prompts.template import template_file
from jaxrl_sql.types import Example, InputError

# Other files of a folder, such as a hub's README or results of evaluations, do not affect the run.
_READ = re.compile(
    r"((generation_|tokenizer_)?config|tokenizer|special_tokens_map|added_tokens|vocab)\.json|"
    r"(vocab|merges)\.txt|tokenizer\.model|.*\.jinja"
)
_WEIGHTS = re.compile(r".*\.(safetensors|safetensors\.index\.json|gguf)")
_READERS = 8
_BLOCK = 1 << 22


def input_mib(recipe: str, data: DataConfig, base: str) -> int:
    """Return the MiB that `hash_files` reads, rounded down, as they are reported."""
    files = dict(_files(recipe.rpartition(":")[0], data, base))
    return sum(path.stat().st_size for path in files.values()) // (1 << 20)


def hash_files(recipe: str, data: DataConfig, base: str, on_progress: ProgressCallback = no_progress) -> dict[str, str]:
    """Return the hash of each file of the `base` model and the tokenizer, and of other named files, by key and name.

    A moved folder has the same ones; a missing file has none. `on_progress` is called with the MiB that were read.
    """
    files, read = dict(_files(recipe.rpartition(":")[0], data, base)), Tally(on_progress, unit=1 << 20)
    with ThreadPoolExecutor(_READERS) as pool:
        return dict(zip(files, pool.map(lambda path: _hash(path, read.add), files.values()), strict=True))


def count_questions(train: PromptSet, evals: Mapping[str, PromptSet]) -> int:
    """Return the number of questions that `hash_question_sets` hashes."""
    return sum(len(questions.examples) for questions in (train, *evals.values()) if questions.streamed is None)


def hash_question_sets(
    data: DataConfig, train: PromptSet, evals: Mapping[str, PromptSet], on_progress: ProgressCallback = no_progress
) -> dict[str, str]:
    """Return a hash of the questions of each set.

    A streamed set has too many databases to read them all: its folder is compared. `on_progress` is called with the
    number of hashed questions.
    """
    done, sets = Tally(on_progress), {"data.train": train}
    sets |= {f"data.evals/{name}": questions for name, questions in evals.items()}
    return {
        name: hash_questions(questions, digest(questions), done.add) if questions.streamed is None else data.dir
        for name, questions in sets.items()
    }


def digest(questions: PromptSet) -> str:
    """Return a short hash of a set's prompts and their order; of a streamed set, of about 16 evenly spaced prompts."""
    sha = hashlib.sha256()
    if questions.streamed:
        sha.update(questions.streamed[0].encode())
    for prompt in questions.sample(16):
        sha.update(json.dumps([prompt.uid, len(prompt.token_ids), prompt.text]).encode())
    return sha.hexdigest()[:16]


def base_hashes(inputs: Mapping[str, str]) -> dict[str, str]:
    """Return the hashes of the base model alone."""
    return {name: value for name, value in inputs.items() if name.startswith("model.checkpoint")}


def hash_questions(questions: PromptSet, prompt_digest: str, on_hashed: ProgressCallback = no_progress) -> str:
    """Return a hash of a set's questions, golds, databases and target answers, combined with the hash of its prompts.

    `on_hashed` is called with 1 after each question.
    """
    targets = [(example.demonstration, example.reasoning) for example in questions.examples]
    return digest_of([digests(_counted(questions.examples, on_hashed)), targets, prompt_digest])


def _counted(examples: Sequence[Example], on_done: ProgressCallback) -> Iterator[Example]:
    for example in examples:
        yield example
        on_done(1)


def refuse_other_inputs(folder: Path, at_start: Mapping[str, str], current: Mapping[str, str]) -> None:
    """Raise InputError with the names of all inputs that differ from those at the run's start, are missing or new."""
    others = sorted(name for name in {**at_start, **current} if at_start.get(name) != current.get(name))
    if others:
        raise InputError(
            f"{folder}: {', '.join(others)}: changed since the run started; a resumed run must compute "
            "the same as an uninterrupted one: restore them, or choose another run.dir"
        )


def _files(recipe: str, data: DataConfig, base: str) -> Iterator[tuple[str, Path]]:
    """Yield (key, file) of each existing file that the settings name."""
    synthetic = f"{data.dir}/tokenizer" if data.source == "synth" and not base else ""
    sources: Sequence[tuple[str, str | Path]] = (
        ("model.checkpoint", base),
        ("data.tokenizer.path", data.tokenizer.path or synthetic),
        ("data.chat.template", template_file(data.chat.template) if data.chat.template else ""),
        ("data.retrieval.synonyms", data.retrieval.synonyms),
        ("data.select.include_ids", data.select.include_ids),
        ("data.traces", data.traces),
        ("recipe", recipe if recipe.endswith(".py") else ""),
    )
    for key, source in sources:
        path = Path(source)
        if source and path.is_dir():
            has_weights = key != "data.tokenizer.path"
            yield from ((f"{key}/{file.name}", file) for file in sorted(path.iterdir()) if _is_read(file, has_weights))
        elif source and path.is_file():
            yield key, path


def _is_read(path: Path, has_weights: bool) -> bool:
    is_named = _READ.fullmatch(path.name) or (has_weights and _WEIGHTS.fullmatch(path.name))
    return bool(is_named) and path.is_file()


def _hash(path: Path, on_read: ProgressCallback) -> str:
    whole = hashlib.blake2b(digest_size=16)
    with path.open("rb") as file:
        while block := file.read(_BLOCK):
            whole.update(block)
            on_read(len(block))
    return whole.hexdigest()
