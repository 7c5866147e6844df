"""The section `run`: the run folder and its contents."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Annotated

from jaxrl_sql.config.fields import NotEmpty, OneOf, PositiveInt, SomeOf, Synonyms

TRACKERS = ("tensorboard", "wandb", "trackio")


@dataclass(frozen=True)
class RunConfig:
    """The run folder, its checkpoints and answers, progress output and trackers."""

    dir: Annotated[
        str,
        NotEmpty("it names the output folder of the run"),
        "Output folder of the run.",
        Synonyms(trl="output_dir", verl="trainer.default_local_dir"),
    ] = "runs/run"
    resume: Annotated[
        bool,
        "Resume the run in `run.dir` from its newest checkpoint.",
        Synonyms(trl="resume_from_checkpoint", verl="trainer.resume_mode", note="verl's default, auto, is true"),
    ] = False
    checkpoint_every: Annotated[
        PositiveInt,
        "Number of steps between checkpoints.",
        Synonyms(trl="save_steps", verl="trainer.save_freq"),
    ] = 50
    keep_checkpoints: Annotated[
        PositiveInt,
        "Number of latest checkpoints to keep.",
        Synonyms(trl="save_total_limit", verl="trainer.max_actor_ckpt_to_keep"),
    ] = 2
    samples_per_step: Annotated[
        int,
        "Number of answers per step that are written to samples.jsonl.",
        Synonyms(trl="num_completions_to_print", verl="trainer.log_val_generations", note="verl's are of validation"),
    ] = 4
    keep_rollouts: Annotated[
        int,
        "Maximum number of answers that are kept for `jaxrl-sql view`, for rollouts and evaluations each; the oldest "
        "are evicted first. 0 keeps none.",
        Synonyms(trl="log_completions", verl="trainer.rollout_data_dir"),
    ] = 100_000
    display: Annotated[
        str,
        OneOf("auto", "rich", "plain", "none"),
        "Format of the progress output; `auto` is `rich` in a terminal.",
        Synonyms(trl="disable_tqdm", note="true means none"),
    ] = "auto"
    compilation_cache: Annotated[
        str,
        "Folder of compiled programs that later runs reuse. `auto` is a folder in the user's cache, for runs of one "
        "process; empty disables the cache.",
    ] = "auto"
    keep_best: Annotated[
        int,
        "Number of best checkpoints to keep in addition to the latest. If above 0, a checkpoint is saved after each "
        "evaluation.",
        Synonyms(trl="load_best_model_at_end", note="true keeps 1"),
    ] = 0
    best_by: Annotated[
        str,
        "Evaluation metric that ranks checkpoints; higher is better. A name such as `accuracy` is the mean of "
        "`eval/<split>/accuracy` over the splits.",
        Synonyms(trl="metric_for_best_model"),
    ] = "accuracy"
    trackers: Annotated[
        list[str],
        SomeOf(*TRACKERS),
        "Trackers that receive the metrics in addition to metrics.jsonl; if empty, none.",
        Synonyms(trl="report_to", verl="trainer.logger"),
    ] = field(default_factory=lambda: ["tensorboard"])
    project: Annotated[
        str,
        "Project name of the run in wandb and trackio.",
        Synonyms(trl="project", verl="trainer.project_name"),
    ] = "jaxrl-sql"
    pad_to_max: Annotated[
        bool,
        "Pad prompts, supervised answers and caches to their maximum sizes, which reduces the number of compiled "
        "programs to about a third. This helps runs that are short compared with their compilation. Prompts are padded "
        "to the longest; in `jaxrl-sql evaluate`, to `data.max_prompt_tokens`.",
    ] = False
