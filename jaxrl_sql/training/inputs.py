"""Hashes of the files and questions that a run reads; a run resumes only if they are unchanged.

A checkpoint contains neither frozen weights (such as the base of adapters) nor questions nor databases. A resumed run
reads them again, and the same path may have another content by then. Files that settings name are hashed whole. Of
large databases only a few hundred places are hashed (`files_identity`).
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

# Files of a model's folder that affect the run, in contrast to a README or results of evaluations.
_CONFIG_FILES = re.compile(
    r"((generation_|tokenizer_)?config|tokenizer|special_tokens_map|added_tokens|vocab)\.json|"
    r"(vocab|merges)\.txt|tokenizer\.model|.*\.jinja"
)
_WEIGHTS = re.compile(r".*\.(safetensors|safetensors\.index\.json|gguf)")
_NUM_THREADS = 8
_BLOCK_BYTES = 1 << 22


def input_mib(recipe: str, data: DataConfig, base: str) -> int:
    """Return the MiB that `hash_files` reads, rounded down: the total of its progress. The arguments are the same."""
    files = dict(_files(recipe.rpartition(":")[0], data, base))
    return sum(path.stat().st_size for path in files.values()) // (1 << 20)


def hash_files(recipe: str, data: DataConfig, base: str, on_progress: ProgressCallback = no_progress) -> dict[str, str]:
    """Return the hashes of the files that settings name: those of the base model, the tokenizer and others.

    `base` is the path of the base model (`model.checkpoint`), and `recipe` the setting of that name. Names in the
    result are a setting's key, and for a folder also the file's name, as in `model.checkpoint/config.json`. So a moved
    folder has the same names; a missing file has no hash. `on_progress` is called with the MiB that were read.
    """
    files, bytes_read = dict(_files(recipe.rpartition(":")[0], data, base)), Tally(on_progress, unit=1 << 20)
    with ThreadPoolExecutor(_NUM_THREADS) as pool:
        return dict(zip(files, pool.map(lambda path: _hash(path, bytes_read.add), files.values()), strict=True))


def count_questions(train: PromptSet, evals: Mapping[str, PromptSet]) -> int:
    """Return the number of questions that `hash_question_sets` hashes."""
    return sum(len(questions.examples) for questions in (train, *evals.values()) if questions.streamed is None)


def hash_question_sets(
    data: DataConfig, train: PromptSet, evals: Mapping[str, PromptSet], on_progress: ProgressCallback = no_progress
) -> dict[str, str]:
    """Return a hash of the questions of each set, by `data.train` and `data.evals/NAME`.

    A streamed set (a huge set, whose prompts are made when they are used) has too many databases to read them all; the
    path of its folder replaces its hash. `on_progress` is called with the number of hashed questions.
    """
    done, sets = Tally(on_progress), {"data.train": train}
    sets |= {f"data.evals/{name}": questions for name, questions in evals.items()}
    return {
        name: hash_questions(questions, digest(questions), done.add) if questions.streamed is None else data.dir
        for name, questions in sets.items()
    }


def digest(questions: PromptSet) -> str:
    """Return a short hash of a set's prompts and their order; for a streamed set, of about 16 evenly spaced prompts.

    `PromptSet.sample` returns all prompts of any other set.
    """
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
    """Return a hash of a set's questions, golds, databases and target answers.

    It includes `prompt_digest`, the hash of its prompts. `on_hashed` is called with 1 after each question.
    """
    targets = [(example.demonstration, example.reasoning) for example in questions.examples]
    return digest_of([digests(_counted(questions.examples, on_hashed)), targets, prompt_digest])


def _counted(examples: Sequence[Example], on_done: ProgressCallback) -> Iterator[Example]:
    """Yield the examples, and call `on_done` with 1 after each."""
    for example in examples:
        yield example
        on_done(1)


def refuse_other_inputs(folder: Path, at_start: Mapping[str, str], current: Mapping[str, str]) -> None:
    """Raise InputError with the names of all inputs that differ from those at the run's start, are missing or new.

    `at_start` and `current` are hashes by name.
    """
    changed = sorted(name for name in {**at_start, **current} if at_start.get(name) != current.get(name))
    if changed:
        raise InputError(
            f"{folder}: {', '.join(changed)}: changed since the run started; a resumed run must compute "
            "the same as an uninterrupted one: restore them, or choose another run.dir"
        )


def _files(recipe: str, data: DataConfig, base: str) -> Iterator[tuple[str, Path]]:
    """Yield (name, file) of each existing file that the settings name, with the names of `hash_files`.

    `recipe` is the path of a recipe's file, if it is one.
    """
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
            reads_weights = key != "data.tokenizer.path"
            files = [file for file in sorted(path.iterdir()) if _is_read(file, reads_weights)]
            yield from ((f"{key}/{file.name}", file) for file in files)
        elif source and path.is_file():
            yield key, path


def _is_read(path: Path, reads_weights: bool) -> bool:
    """Return whether the run reads this file of a model's or tokenizer's folder."""
    has_known_name = _CONFIG_FILES.fullmatch(path.name) or (reads_weights and _WEIGHTS.fullmatch(path.name))
    return bool(has_known_name) and path.is_file()


def _hash(path: Path, on_read: ProgressCallback) -> str:
    """Return the hash of a file; `on_read` is called with the number of bytes of each block."""
    file_hash = hashlib.blake2b(digest_size=16)
    with path.open("rb") as file:
        while block := file.read(_BLOCK_BYTES):
            file_hash.update(block)
            on_read(len(block))
    return file_hash.hexdigest()
