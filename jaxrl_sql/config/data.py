"""The section `data`: questions, databases and prompts."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Annotated

from jaxrl_sql.config.fields import OneOf, PositiveInt


@dataclass(frozen=True)
class DialectsConfig:
    """Shares of the training questions by the dialect that they ask for, 1 together; `executor.databases` runs them."""

    sqlite: float = 1.0
    mysql: float = 0.0
    postgresql: float = 0.0
    duckdb: float = 0.0


@dataclass(frozen=True)
class DataConfig:
    """Where questions and databases come from.

    `source` is `synth` (generated into `dir` from `seed`; splits train, dev, dev_unseen) or `folder` (each split is a
    folder of `dir` with questions.jsonl and databases/). `limit_train` and `limit_eval` of 0 mean all. `prompt` is
    `compact` (answers are SQL alone), `tagged` (as short, answers in the recipe's form), or `chat`, which goes through
    the tokenizer's chat template: `thinking` is `think` or `no_think` where a template has that switch, `template` the
    Jinja file of its messages, or the name of one of ours (`generic`, or a recipe's; empty: the recipe's own), and
    `assistant_prefill` the first words of every answer, which are not the model's (empty: the template's). `date`, such
    as 2026-11-29, is the day that a chat template which writes today's date gets (empty: the day on which the run or
    evaluation begins; a run's model is asked with the run's). `schema` is
    how the database is shown: `compact`, `ddl`, `omnisql` or `profile` (with values), `names_only`, or `recipe` (in a
    chat the recipe's way, else compact). `dialects` are the shares of the training questions that ask for each.
    `include_ids` names a file of ids, such as `data filter` writes: other training questions are left out.
    `traces` names a file of reasoning and SQL by id, such as `distill` writes, which the supervised phase teaches in
    place of the golds. A training set of more than `stream_above` questions is read as its questions are asked (0:
    never), and their golds run then; the supervised phase does not take it. Without a `tokenizer` folder the
    checkpoint's is taken, or the synthetic data's, or one of `vocab_size` is trained. With `prune` a training prompt
    over `max_prompt_tokens` shows less of its schema and is not left out: keys and what the gold reads stay.
    `retrieve` is how many values that the question names are shown (0: none; OmniSQL: 20), by `matched` first among a
    column's `examples`, where the schema has any, or before the `question`, which leaves the schema the same for all
    questions of a database, so that it is computed once; `synonyms` is a folder of static word vectors (Model2Vec's),
    by which values are shown that the question means by another word. A schema of more than `schema_budget`
    tokens (0: any number) shows the tables and columns that the question needs, as many as that has room for.

    `hide` names columns, `table.column`, and whole tables that no prompt shows, no value comes from, and no query may
    read (SQLite files alone); `SELECT *` over such a table is refused, and a question whose gold reads one is left out.

    `eos_token` is the token that ends every taught answer and any sampled one; empty, in a chat the end of an
    assistant's turn in the chat template, elsewhere the tokenizer's `eos_token`.

    `shots` is how many training questions of other databases, the most similar ones, are shown with their SQL before
    each question (0: none); they are taken from `train`, `include_ids` and `limit_train`.
    """

    source: Annotated[str, OneOf("synth", "folder")] = "synth"
    dir: str = "data-cache/synth"
    seed: int = 0
    train: str = "train"
    evals: list[str] = field(default_factory=lambda: ["dev_unseen"])
    tokenizer: str = ""
    vocab_size: int = 4096
    prompt: Annotated[str, OneOf("compact", "tagged", "chat")] = "compact"
    thinking: Annotated[str, OneOf("template", "think", "no_think")] = "template"
    assistant_prefill: str = ""
    template: str = ""
    date: str = ""
    max_prompt_tokens: PositiveInt = 384
    limit_train: int = 0
    limit_eval: int = 0
    drop_empty_gold: bool = True
    dialects: DialectsConfig = field(default_factory=DialectsConfig)
    schema: Annotated[str, OneOf("recipe", "compact", "ddl", "omnisql", "profile", "names_only")] = "recipe"
    include_ids: str = ""
    traces: str = ""
    stream_above: int = 100_000
    prune: bool = False
    retrieve: int = 0
    matched: Annotated[str, OneOf("examples", "question")] = "examples"
    synonyms: str = ""
    shots: int = 0
    schema_budget: int = 0
    hide: list[str] = field(default_factory=list)
    eos_token: str = ""
