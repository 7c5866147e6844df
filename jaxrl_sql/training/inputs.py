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
from jaxrl_sql.text2sql.prompts.prompts import PromptSet
from jaxrl_sql.text2sql.prompts.template import template_file
from jaxrl_sql.types import InputError

# Other files of a folder, such as a hub's README or results of evaluations, do not affect the run.
_READ = re.compile(
    r"((generation_|tokenizer_)?config|tokenizer|special_tokens_map|added_tokens|vocab)\.json|"
    r"(vocab|merges)\.txt|tokenizer\.model|.*\.jinja"
)
_WEIGHTS = re.compile(r".*\.(safetensors|safetensors\.index\.json|gguf)")
_READERS = 8


def file_inputs(recipe: str, data: DataConfig, base: str) -> dict[str, str]:
    """Return the hash of each file of the `base` model and the tokenizer, and of other named files, by key and name.

    A moved folder has the same ones; a missing file has none.
    """
    files = dict(_files(recipe.rpartition(":")[0], data, base))
    with ThreadPoolExecutor(_READERS) as pool:
        return dict(zip(files, pool.map(_hash, files.values()), strict=True))


def question_inputs(data: DataConfig, train: PromptSet, evals: Mapping[str, PromptSet]) -> dict[str, str]:
    """Return a hash of the questions of each set.

    A streamed set has too many databases to read them all: its folder is compared.
    """
    sets = {"data.train": train} | {f"data.evals/{name}": questions for name, questions in evals.items()}
    return {
        name: question_input(questions, digest(questions)) if questions.streamed is None else data.dir
        for name, questions in sets.items()
    }


def digest(questions: PromptSet) -> str:
    """Return a short hash of a set's prompts and their order."""
    sha = hashlib.sha256()
    if questions.streamed:
        sha.update(questions.streamed[0].encode())
    for prompt in questions.sample(16):
        sha.update(json.dumps([prompt.uid, len(prompt.token_ids), prompt.text]).encode())
    return sha.hexdigest()[:16]


def base_inputs(inputs: Mapping[str, str]) -> dict[str, str]:
    """Return the hashes of the base model alone."""
    return {name: value for name, value in inputs.items() if name.startswith("model.checkpoint")}


def question_input(questions: PromptSet, prompts: str) -> str:
    """Return a hash of a set's questions, golds, databases and target answers with `prompts`, that of its prompts."""
    targets = [(example.demonstration, example.reasoning) for example in questions.examples]
    return digest_of([digests(questions.examples), targets, prompts])


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


def _hash(path: Path) -> str:
    with path.open("rb") as file:
        return hashlib.file_digest(file, lambda: hashlib.blake2b(digest_size=16)).hexdigest()
