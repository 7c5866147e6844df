"""The questions that a run was trained on, as hashes in its folder: an evaluation reports those that it scores.

Questions with the same words and evidence on databases of the same name are equal. A base of a model is the checkpoint
that its training started from, which may itself be the result of a run.
"""

from __future__ import annotations

import hashlib
from collections.abc import Iterable, Sequence
from pathlib import Path

from jaxrl_sql.config import TrainConfig, load_config
from jaxrl_sql.runtime.folder import CONFIG
from jaxrl_sql.runtime.model_locator import find_model
from jaxrl_sql.runtime.progress import agree
from jaxrl_sql.text2sql.question_sets.filters import plain_words
from jaxrl_sql.types import Example, InputError

TRAINED = "trained_questions.txt"
_DIGEST_BYTES = 6
# Limit of the chain from a model to its bases, which a loop could make endless.
_MAX_BASES = 9


def save_trained_questions(folder: Path, examples: Iterable[Example]) -> None:
    """Write a hash per distinct question to a run's folder, a line each."""
    lines = sorted({_hash(example) for example in examples})
    (folder / TRAINED).write_text("".join(f"{line}\n" for line in lines), encoding="ascii")


def trained_warning(name: str, examples: Sequence[Example], model: str, split: str = "") -> str:
    """Return a warning if the training of a model, or of its bases on this machine, had questions of the set `name`.

    "" if it had none, or if no run of the model has hashes of its questions. Without a `split`, the warning proposes
    one.
    """
    hashes = _hashes_of_model(model)
    count = sum(_hash(example) in hashes for example in examples) if hashes else 0
    if not count:
        return ""
    subject = f"{count:,} of {len(examples):,} questions of {name} {agree(count, 'are')}"
    hint = "" if split else " (of a single file, --split dev)"
    return f"warning: {subject} in the training of the model: evaluate held-out questions{hint}"


def _hashes_of_model(model: str) -> set[str]:
    """Return the hashes of all questions that a model and its bases were trained on."""
    hashes: set[str] = set()
    try:
        for _ in range(_MAX_BASES):
            run = find_model(model)[1]
            if run is None:
                break
            if (run / TRAINED).is_file():
                hashes |= {*(run / TRAINED).read_text(encoding="ascii", errors="replace").split()}
            model = load_config(TrainConfig, run / CONFIG, is_checked=False).model.checkpoint
            if not model:
                break
    except InputError:  # a base or a file that its configuration names is missing
        return hashes
    return hashes


def _hash(example: Example) -> str:
    text = "\n".join((example.db_id, plain_words(example.question), plain_words(example.evidence)))
    return hashlib.blake2b(text.encode("utf-8", errors="surrogateescape"), digest_size=_DIGEST_BYTES).hexdigest()
