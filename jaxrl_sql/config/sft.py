"""The section `sft`: the supervised phase."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, field
from typing import Annotated

from jaxrl_sql.config.fields import AtLeast, OneOf, PositiveInt, Share, Synonyms
from jaxrl_sql.config.optim import OptimConfig


@dataclass(frozen=True)
class SftConfig:
    """The supervised phase before reinforcement learning; a batch has `databases` x `questions` examples."""

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
            note="a batch has sft.databases x sft.questions examples of all devices together",
        ),
    ] = 16
    questions: Annotated[PositiveInt, "Number of questions per database of a batch."] = 16
    max_completion_tokens: Annotated[
        PositiveInt,
        "Most tokens of a taught answer; longer ones are left out.",
        Synonyms(trl="max_length", verl="data.max_length", note="theirs count the prompt too"),
    ] = 1024
    loss_on: Annotated[
        str,
        OneOf("answer", "text"),
        "Tokens that are taught. `text` includes the question, for a model made from scratch, which has yet to learn "
        "the language.",
        Synonyms(trl="completion_only_loss", note="true is answer, false is text"),
    ] = "answer"
    gradient_accumulation_steps: Annotated[
        int,
        "Number of parts into which a batch is cut to save memory; they are computed one after another. 0 leaves one "
        "database at a time to each shard of `mesh.data` x `mesh.fsdp`.",
        Synonyms(trl="gradient_accumulation_steps", note="it cuts the batch and does not enlarge it"),
    ] = 1
    shuffle_identifiers: Annotated[
        Share,
        "Share of the schemas whose words are replaced by random others, so that the model copies names instead of "
        "remembering them.",
    ] = 0.0
    log_every: Annotated[
        PositiveInt, "Number of steps from one line of metrics to the next.", Synonyms(trl="logging_steps")
    ] = 20
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
        "Share of the training questions that are not taught, whose loss is measured; 0 holds out none.",
    ] = 0.0
    patience: Annotated[
        int,
        "Number of measurements in a row without a lower held-out loss after which the phase ends; the run continues "
        "with the best parameters. 0 never ends it early.",
    ] = 0
    traces: Annotated[
        str,
        OneOf("reasoning", "sql"),
        "Part of the examples that is taught: `reasoning`, where an example has some, with the SQL, or the `sql` "
        "alone.",
    ] = "reasoning"
    formats: Annotated[
        list[str],
        "Recipes whose answer formats are taught, a different one for each example in each epoch; if empty, the run's "
        "own.",
    ] = field(default_factory=list)
    packing: Annotated[
        bool,
        "Put several questions of a schema into one row of the longest one's length, in batches of schemas of similar "
        "length. The sums are the same with less padding, but the order of the batches differs.",
        Synonyms(trl="packing", note="an example sees itself and its schema alone"),
    ] = False

    def faults(self, name: str) -> Iterator[str]:
        """Yield what the section's fields contradict."""
        parts = self.gradient_accumulation_steps
        if self.databases % (parts or 1):
            yield f"{name}.gradient_accumulation_steps={parts} must divide {name}.databases={self.databases}"
        if self.steps and self.epochs:
            yield f"{name}.steps={self.steps} and {name}.epochs={self.epochs} both say how long: leave one at 0"
        if self.patience and not (self.held_out > 0 and self.eval_every > 0):
            yield (
                f"{name}.patience={self.patience} needs {name}.held_out and {name}.eval_every above 0: there is "
                "nothing to measure"
            )
