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
    """What `jaxrl-sql evaluate` judges, and how a model answers there; `jaxrl-sql ask` samples like this too.

    Without `predictions`, `model.checkpoint` answers, or the endpoint at `evaluate.base_url`, with the prompts of
    `recipe` and `data`. A run's model has the run's prompts and sampling by default, and another model `chat`
    prompts of up to 8,192 tokens.
    """

    data: Annotated[list[str], "Folders of benchmarks."] = field(default_factory=list)
    split: Annotated[str, "Split of each benchmark; if empty, its only one, or its development part."] = ""
    limit: Annotated[int, "Number of questions of each benchmark that are asked, the first ones; 0 asks all."] = 0
    include_ids: Annotated[str, "File of question ids; other questions are not asked. If empty, all are asked."] = ""
    answerable_only: Annotated[bool, "Leave out questions without an answer (EHRSQL)."] = False
    predictions: Annotated[list[str], "Files of predictions, one per benchmark; if empty, a model answers."] = field(
        default_factory=list
    )
    sql_field: Annotated[
        str,
        "Field of a predictions file that holds the SQL. If empty, it is found, or refused where the gold could be "
        "taken for the prediction.",
    ] = ""
    allow_missing: Annotated[
        bool, "Leave questions without a prediction out of every share, instead of refusing the file."
    ] = False
    allow_extra: Annotated[bool, "Leave out predictions that belong to no question, instead of refusing the file."] = (
        False
    )
    rules: Annotated[
        list[str],
        "Rules by which results are compared; if empty, bird, refined, test_suite and the benchmark's own.",
    ] = field(default_factory=list)
    rule: Annotated[str, "Rule that decides `accuracy`; if empty, the benchmark's own."] = ""
    surplus_columns: Annotated[
        int, "Number of columns beyond the gold's from which the rule `ex_b` refuses a prediction; 0 allows any number."
    ] = 0
    strip_distinct: Annotated[
        bool,
        "Remove DISTINCT from predictions and golds before they run, as Spider's own command does by default.",
    ] = False
    out: Annotated[str, "Folder that is written."] = "runs/evaluate"
    sampling: SamplingConfig = field(default_factory=lambda: SamplingConfig(temperature=0.0, max_new_tokens=1024))
    samples: Annotated[
        PositiveInt,
        "Number of answers per question, of which `evaluate.vote` chooses one.",
        Synonyms(verl="actor_rollout_ref.rollout.val_kwargs.n"),
    ] = 1
    vote: Annotated[
        str,
        OneOf("result", "soft"),
        "Choice among several answers: the one whose rows most answers have (`result`), or the nearest to all others "
        "(`soft`).",
    ] = "result"
    runs: Annotated[PositiveInt, "Number of times that everything is sampled anew."] = 1
    max_num_seqs: Annotated[PositiveInt, "Number of answers that are generated at the same time."] = 64
    send_temperature: Annotated[
        bool,
        "Send the temperature to an endpoint. With false none is sent, for a model that accepts none, and "
        "`evaluate.samples` and `evaluate.runs` ask it anew.",
    ] = True

    def faults(self, name: str) -> Iterator[str]:
        """Yield what the section's fields contradict."""
        yield from super().faults(name)
        sampling = self.sampling
        if not sampling.turns:
            yield f"{name}.sampling.turns=0 must be above 0"
        for field_name, count in (("samples", self.samples), ("runs", self.runs)):
            if count > 1 and sampling.temperature == 0 and self.send_temperature:
                yield (
                    f"{name}.{field_name}={count} at {name}.sampling.temperature=0 would all be the same: set a "
                    "temperature, such as 0.8"
                )
        if not self.send_temperature and not self.base_url:
            yield (
                f"{name}.send_temperature=false is for an endpoint ({name}.base_url): other models need a temperature"
            )
        if sampling.turns > 1 and not self.base_url and sampling.max_total_tokens < sampling.max_new_tokens:
            yield (
                f"{name}.sampling.max_total_tokens={sampling.max_total_tokens} bounds all turns: it is below "
                f"{name}.sampling.max_new_tokens"
            )
