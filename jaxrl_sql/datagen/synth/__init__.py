"""Generate text-to-SQL data from a seed: databases, questions with gold SQL, and a small tokenizer.

A domain (`domains_*.py`, parsed by `notation`) is a subject such as retail, with alternative names for its tables and
columns; `databases` generates a database of a domain. `templates` holds the wordings and SQL of questions, which
`question_builder` fills; `grammar` is another source of questions. `questions` keeps those whose gold (the reference
query) has an informative result. `extra_columns` adds to some of them a demonstration: another query that supervised
training shows instead of the gold. `tokenizer` trains the BPE on the training split, and `dataset` writes everything in
the layout of the benchmarks. `user_databases` generates questions about a user's SQLite files, read by `read_database`,
with the same templates.
"""

from __future__ import annotations

from importlib import import_module
from typing import TYPE_CHECKING, Any

from jaxrl_sql.datagen.synth.spec import SynthReport, SynthSpec

if TYPE_CHECKING:
    from jaxrl_sql.datagen.synth.dataset import generate
    from jaxrl_sql.datagen.synth.tokenizer import train_tokenizer

__all__ = ["SynthReport", "SynthSpec", "generate", "train_tokenizer"]

_SLOW = {"generate": "dataset", "train_tokenizer": "tokenizer"}


def __getattr__(name: str) -> Any:
    """Import a function at its first use, to keep argument parsing fast."""
    if name not in _SLOW:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    return getattr(import_module(f"{__name__}.{_SLOW[name]}"), name)
