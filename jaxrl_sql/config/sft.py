"""The section `sft`: the supervised phase."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, field
from typing import Annotated

from jaxrl_sql.config.fields import AtLeast, OneOf, PositiveInt, Share, Synonyms
from jaxrl_sql.config.optim import OptimConfig


@dataclass(frozen=True)
class SftConfig:
    """The supervised phase before reinforcement learning; a batch has `databases` x `questions` examples.

    A schema is the description of a database in prompts. It is computed once for all of a batch's questions on it.
    """

    steps: Annotated[
        int,
        "Number of supervised steps; 0 skips the phase, unless `sft.epochs` is above 0.",
        Synonyms(trl="max_steps", verl="trainer.total_training_steps"),
    ] = 0
    databases: Annotated[
        PositiveInt,
        "Number of databases per batch.",
        Synonyms(
            trl="per_device_train_batch_size",
            verl="data.train_batch_size",
            note="a batch has sft.databases x sft.questions examples over all devices",
        ),
    ] = 16
    questions: Annotated[PositiveInt, "Number of questions per database of a batch."] = 16
    max_completion_tokens: Annotated[
        PositiveInt,
        "Maximum number of tokens of a target answer; longer ones are omitted.",
        Synonyms(trl="max_length", verl="data.max_length", note="theirs count the prompt too"),
    ] = 1024
    loss_on: Annotated[
        str,
        OneOf("answer", "text"),
        "Tokens in the loss. `text` includes the question, for a model from scratch, which has yet to learn the "
        "language.",
        Synonyms(trl="completion_only_loss", note="true is answer, false is text"),
    ] = "answer"
    gradient_accumulation_steps: Annotated[
        int,
        "Number of parts into which a batch is split to save memory; they are computed sequentially. With 0, each "
        "shard of `mesh.data` x `mesh.fsdp` computes one database at a time.",
        Synonyms(trl="gradient_accumulation_steps", note="it splits the batch and does not enlarge it"),
    ] = 1
    shuffle_identifiers: Annotated[
        Share,
        "Share of the schemas whose words are replaced by random ones, so that the model copies names instead of "
        "memorizing them.",
    ] = 0.0
    log_every: Annotated[PositiveInt, "Number of steps between lines of metrics.", Synonyms(trl="logging_steps")] = 20
    eval_every: Annotated[
        int,
        "Number of steps between measurements of the held-out loss; 0 measures it only at the end.",
        Synonyms(trl="eval_steps", verl="trainer.test_freq"),
    ] = 0
    optim: OptimConfig = field(default_factory=lambda: OptimConfig(lr=2e-5))
    epochs: Annotated[
        int,
        "Number of passes over the training questions, instead of `sft.steps`; 0 counts steps.",
        Synonyms(trl="num_train_epochs", verl="trainer.total_epochs", note="GRPO counts steps: grpo.steps"),
    ] = 0
    held_out: Annotated[
        float,
        AtLeast(0, below=1),
        "Share of the training questions that are held out to measure their loss; 0 holds out none.",
    ] = 0.0
    patience: Annotated[
        int,
        "Number of consecutive measurements without a lower held-out loss that end the phase; the run continues with "
        "the best parameters. 0 disables early stopping.",
    ] = 0
    min_delta: Annotated[
        float,
        AtLeast(0),
        "Decrease of the held-out loss below the best that is too small for `sft.patience` to count as lower "
        "(transformers' `early_stopping_threshold`).",
    ] = 0.0
    traces: Annotated[
        str,
        OneOf("reasoning", "sql"),
        "Target of the examples: SQL after the example's reasoning, if it has some (`reasoning`), or `sql` only.",
    ] = "reasoning"
    formats: Annotated[
        list[str],
        "Recipes whose answer formats are used as targets, in turn over examples and epochs; if empty, the run's own.",
    ] = field(default_factory=list)
    packing: Annotated[
        bool,
        "Pack several questions of a schema into one row of the longest one's length, in batches of schemas of similar "
        "length. The sums are the same with less padding, but the order of the batches differs.",
        Synonyms(trl="packing", note="an example attends only to itself and its schema"),
    ] = False

    def find_errors(self, name: str) -> Iterator[str]:
        """Yield a line for each contradiction between the section's fields."""
        parts = self.gradient_accumulation_steps
        if self.databases % (parts or 1):
            yield f"{name}.gradient_accumulation_steps={parts} must divide {name}.databases={self.databases}"
        if self.steps and self.epochs:
            yield f"{name}.steps={self.steps} and {name}.epochs={self.epochs} are exclusive: set one of them to 0"
        if self.patience and not (self.held_out > 0 and self.eval_every > 0):
            yield (
                f"{name}.patience={self.patience} needs {name}.held_out and {name}.eval_every above 0, which measure "
                "the held-out loss"
            )
