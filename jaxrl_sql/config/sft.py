"""The section `sft`: the supervised phase."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Annotated

from jaxrl_sql.config.fields import OneOf, PositiveInt
from jaxrl_sql.config.optim import OptimConfig


@dataclass(frozen=True)
class SftConfig:
    """The supervised cold start: `databases` x `questions` a batch; 0 steps skip it.

    `loss_on` is `answer` (completions only) or `text` (the question too: for a model made from scratch, which has yet
    to learn the language). `gradient_accumulation_steps` cuts a batch into that many parts, computed one after another
    (0: as many as leave a database at a time to each shard of `mesh.data` x `mesh.fsdp`).
    `shuffle_identifiers` is the share of schemas whose words are replaced by random others, so that names are copied
    and not remembered.

    `epochs` above 0 says how long in place of `steps`. `held_out` is the share of the training questions that are not
    taught; their loss is measured every `eval_every` steps and at the end, and after `patience` measurements in a row
    that are no better than the best (0: never) the phase ends and the run goes on with the parameters of the best.
    `traces` is `reasoning` (taught where an example has some) or `sql` (answers alone). `formats` names the recipes
    whose forms are taught side by side, an example in another one each epoch; empty means the run's own.

    `packing` puts a schema's questions into fewer rows of the longest one's length, each seeing itself and the schema
    alone, makes batches of schemas of like length, and computes the vocabulary's product for learned tokens only: the
    same sums over less padding, in batches of another order.
    """

    steps: int = 0
    databases: PositiveInt = 16
    questions: PositiveInt = 16
    max_completion_tokens: PositiveInt = 160
    loss_on: Annotated[str, OneOf("answer", "text")] = "answer"
    gradient_accumulation_steps: int = 1
    shuffle_identifiers: float = 0.0
    log_every: PositiveInt = 20
    eval_every: int = 0
    optim: OptimConfig = field(default_factory=OptimConfig)
    epochs: int = 0
    held_out: float = 0.0
    patience: int = 0
    traces: Annotated[str, OneOf("reasoning", "sql")] = "reasoning"
    formats: list[str] = field(default_factory=list)
    packing: bool = False
