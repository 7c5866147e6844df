"""Generate text-to-SQL data from a seed: databases, questions with gold SQL, and a small tokenizer.

Domains (`domains_*.py`, parsed by `notation`) are spaces of databases; `databases` generates a database of a domain.
`templates` are the wordings and SQL of questions, which `question_builder` fills; `questions` keeps those whose gold
answers something. `extra_columns` gives some of them demonstrations that show too much, `tokenizer` trains the BPE on
the training split, `generate` writes all of it in the layout of the benchmarks. `user_databases` asks a user's own
SQLite files by the same templates, read by `read_database`.
"""

from jaxrl_sql.datagen.synth.generate import generate
from jaxrl_sql.datagen.synth.spec import SynthReport, SynthSpec
from jaxrl_sql.datagen.synth.tokenizer import train_tokenizer

__all__ = ["SynthReport", "SynthSpec", "generate", "train_tokenizer"]
