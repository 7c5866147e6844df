"""Generate text-to-SQL data from a seed: databases, questions with gold SQL, and a small tokenizer.

Domains (`domains_*.py`, parsed by `notation`) are spaces of databases; `databases` generates a database of a domain.
`templates` are the wordings and SQL of questions, which `question_builder` fills; `questions` keeps those whose gold
answers something. `extra_columns` gives some of them demonstrations that show too much, `tokenizer` trains the BPE on
the training split, `dataset` writes all of it in the layout of the benchmarks. `user_databases` asks a user's own
SQLite files by the same templates, read by `read_database`.
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
    """Import a function at its first use: the command reads its arguments before."""
    if name not in _SLOW:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    return getattr(import_module(f"{__name__}.{_SLOW[name]}"), name)
