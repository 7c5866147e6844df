"""Generate text-to-SQL data from a seed: databases, questions with gold SQL, and a small tokenizer.

Domains (`domains_*.py`, read by `notation`) are spaces of databases; `draw` takes one database from a domain, `ask`
draws questions on it from templates by grade and keeps those whose gold answers something, `habit` gives some of them a
teacher of extra columns's demonstration, `tokenizer` trains the BPE
on the training split, `generate` writes all of it in the layout of the benchmarks. `own` asks by the same templates of
somebody's own databases, which `own_read` reads as the generator's nouns.
"""

from jaxrl_sql.datagen.synth.generate import generate
from jaxrl_sql.datagen.synth.spec import SynthReport, SynthSpec, render_schema
from jaxrl_sql.datagen.synth.tokenizer import train_tokenizer

__all__ = ["SynthReport", "SynthSpec", "generate", "render_schema", "train_tokenizer"]
