"""The section `evaluate`: benchmarks, predictions and rules of `jaxrl-sql evaluate`."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, field
from typing import Annotated

from jaxrl_sql.config.endpoint import EndpointConfig
from jaxrl_sql.config.fields import OneOf, PositiveInt, Synonyms
from jaxrl_sql.config.sampling import SamplingConfig


@dataclass(frozen=True)
class EvaluateSettings(EndpointConfig):
    """Benchmarks and predictions that `jaxrl-sql evaluate` scores, and the sampling of a model, also for `ask`.

    Without `predictions`, `model.checkpoint` or the endpoint at `evaluate.base_url` answers the prompts of `recipe` and
    `data`. A run's model uses the run's prompts and sampling by default, and another model `chat` prompts of up to
    8,192 tokens.
    """

    data: Annotated[list[str], "Folders of benchmarks."] = field(default_factory=list)
    split: Annotated[str, "Split of each benchmark; if empty, its only one, or its development part."] = ""
    limit: Annotated[int, "Number of questions of each benchmark that are evaluated, the first ones; 0: all."] = 0
    include_ids: Annotated[str, "File of question ids; other questions are skipped. If empty, none are skipped."] = ""
    answerable_only: Annotated[bool, "Omit questions without an answer (EHRSQL)."] = False
    predictions: Annotated[list[str], "Files of predictions, one per benchmark; if empty, a model answers."] = field(
        default_factory=list
    )
    sql_field: Annotated[
        str,
        "Field of a predictions file that holds the SQL. If empty, it is detected; a file in which the gold query "
        "could be confused with the prediction is rejected.",
    ] = ""
    allow_missing: Annotated[
        bool, "Exclude questions without a prediction from all metrics, instead of rejecting the file."
    ] = False
    allow_extra: Annotated[bool, "Ignore predictions that belong to no question, instead of rejecting the file."] = (
        False
    )
    rules: Annotated[
        list[str],
        "Rules that compare a prediction's rows with the gold query's (docs/reference/rules.md), each a metric. If "
        "empty, `bird` (equal sets of rows), `refined` (equal rows in any order of rows and cells), `test_suite` "
        "(Spider's comparison) and the benchmark's own.",
    ] = field(default_factory=list)
    rule: Annotated[str, "Rule that decides the metric `accuracy`; if empty, the benchmark's own."] = ""
    surplus_columns: Annotated[
        int,
        "A prediction with at least this many extra columns is wrong by the scoring rule `ex_b` (partial match); 0 "
        "allows any number.",
    ] = 0
    strip_distinct: Annotated[
        bool,
        "Remove DISTINCT from predictions and gold queries before they run, as Spider's own command does by default.",
    ] = False
    out: Annotated[str, "Output folder."] = "runs/evaluate"
    sampling: SamplingConfig = field(default_factory=lambda: SamplingConfig(temperature=0.0, max_new_tokens=1024))
    samples: Annotated[
        PositiveInt,
        "Number of answers per question, of which `evaluate.vote` chooses one.",
        Synonyms(verl="actor_rollout_ref.rollout.val_kwargs.n"),
    ] = 1
    vote: Annotated[
        str,
        OneOf("result", "soft"),
        "Choice among several answers: the most frequent result (`result`), or the result most similar to all others "
        "(`soft`).",
    ] = "result"
    runs: Annotated[PositiveInt, "Number of independent repetitions of the evaluation."] = 1
    max_num_seqs: Annotated[PositiveInt, "Number of answers that are generated concurrently."] = 64
    send_temperature: Annotated[
        bool,
        "Send the temperature to an endpoint; false for a model that does not accept it. `evaluate.samples` and "
        "`evaluate.runs` then send repeated requests.",
    ] = True

    def find_errors(self, name: str) -> Iterator[str]:
        """Yield a line for each contradiction between the section's fields."""
        yield from super().find_errors(name)
        sampling = self.sampling
        if not sampling.turns:
            yield f"{name}.sampling.turns=0 must be above 0"
        for field_name, count in (("samples", self.samples), ("runs", self.runs)):
            if count > 1 and sampling.temperature == 0 and self.send_temperature:
                yield (
                    f"{name}.{field_name}={count} at {name}.sampling.temperature=0 would all be equal: set a "
                    "temperature, such as 0.8"
                )
        if not self.send_temperature and not self.base_url:
            yield (
                f"{name}.send_temperature=false is for an endpoint ({name}.base_url): other models need a temperature"
            )
        if sampling.turns > 1 and not self.base_url and sampling.max_total_tokens < sampling.max_new_tokens:
            yield (
                f"{name}.sampling.max_total_tokens={sampling.max_total_tokens} limits all turns: it is below "
                f"{name}.sampling.max_new_tokens"
            )
