"""The metrics that a run writes to `metrics.jsonl`, as rows of `metric_row.Metric`: unit, formula and reading of each.

`docs/reference/metrics.md` is written from these rows (`scripts/write_reference.py`). Each name that a recipe of the
package writes has a row. A recipe is the prompt, answer format, reward and loss of a published method. A user's loss or
reward may add names.
"""

from __future__ import annotations

from jaxrl_sql.runtime.metric_row import Metric, MetricTable

EVERY = "every line"
SFT = "supervised steps"
STEPS = "supervised and GRPO steps"
GRPO = "GRPO steps"
ROLLOUT = "GRPO steps that sample"
EVAL = "evaluations"
"""Values of `Metric.when`: the lines of `metrics.jsonl` that have the metric; others are conditions on settings."""


TRAINING = (
    MetricTable(
        "Lines",
        "Each line of `metrics.jsonl` is one object.",
        (
            Metric("step", "steps", "", "The run's step; 0 is the evaluation before the first step.", EVERY),
            Metric("phase", "name", "", "`sft`, `grpo`, `grpo2` (the second stage) or `eval`.", EVERY),
        ),
    ),
    MetricTable(
        "Rewards",
        "Means are over the sampled answers whose verdict is trusted: no wall clock or failing database decided it.",
        (
            Metric(
                "reward/mean", "reward", "mean of r",
                "The recipe's scale. It should rise; a rise without one in `eval/<set>/accuracy` is reward hacking.",
                ROLLOUT,
            ),
            Metric(
                "reward/std_within_group", "reward", "mean over groups of std(r), ddof 0",
                "The signal of GRPO. Near 0 nothing is learned.", ROLLOUT,
            ),
            Metric(
                "reward/zero_variance", "share", "groups whose rewards are all equal / groups sampled",
                "0.2 to 0.6 is usual. Near 1: questions are too hard or too easy (`health.zero_advantage_patience`); "
                "try `grpo.dynamic_sampling.oversample` or `grpo.dynamic_sampling.max_extra_generations`.", ROLLOUT,
            ),
            Metric("reward/nonzero", "share", "answers with r > 0 / answers", "Answers that earn anything.", ROLLOUT),
            Metric(
                "reward/untrusted", "share", "answers without a trusted verdict / answers",
                "0 is normal. Above 0.01: the machine is overloaded or a database fails; these answers have weight 0.",
                ROLLOUT,
            ),
            Metric(
                "reward/well_formed", "share", "answers in the recipe's form / answers",
                "Below 0.5 the policy has not learned the form: a cold start (`sft.steps`) teaches it faster.", ROLLOUT,
            ),
            Metric(
                "reward/correct", "share", "answers right by the recipe's rule / answers", "Training accuracy.",
                ROLLOUT,
            ),
            Metric("reward/executes", "share", "answers that run / answers", "Compare with `status/ok`.", ROLLOUT),
            Metric(
                "reward/format", "share", "answers in the recipe's form / answers", "As `reward/well_formed`.", ROLLOUT,
            ),
            Metric(
                "reward/partial", "0 to 1", "mean partial credit: QATCH (Think2SQL), column matches (PaVeRL-SQL)",
                "Usually above `reward/correct`; a growing distance means more near misses.",
                "recipes with partial credit",
            ),
            Metric(
                "reward/length", "reward", "0.5 × share of 2,048 characters + share of SQL in the answer (SQL-R1)",
                "At most 1.5. A rise at equal `reward/correct` rewards long answers.",
                "`recipe=sql_r1`, its variants, and `think2sql_sql_r1`",
            ),
            Metric(
                "reward/queries", "queries per answer", "mean", "Queries that the dialogue ran.", "`recipe=skyrl_sql`",
            ),
            Metric(
                "reward/lookups", "queries per answer", "mean", "Queries that read the schema (PRAGMA, sqlite_master).",
                "`recipe=skyrl_sql`",
            ),
            Metric(
                "reward/repeated", "queries per answer", "mean",
                "Queries that the same dialogue ran before: wasted turns.", "`recipe=skyrl_sql`",
            ),
            Metric(
                "reward/unprobed", "share", "answers whose solution was never run as a query / answers",
                "Near 1 the policy ignores the database.", "`recipe=skyrl_sql`",
            ),
            Metric(
                "reward/recipe", "reward", "mean of the recipe's own reward",
                "What the recipe would have paid, for comparison.", "a reward function of the Python API",
            ),
            Metric(
                "reward/<part>", "reward", "mean of Reward.parts[part]", "A part of your own reward.",
                "an own recipe or reward function",
            ),
            Metric(
                "status/<status>", "share", "answers with this status / answers",
                "`ok`, `no_sql`, `syntax_error`, `schema_error`, … of the executor. They sum to 1. `timeout` above "
                "0.05: raise `executor.vm_steps`; any `db_error`: check the databases.", ROLLOUT,
            ),
        ),
    ),
    MetricTable(
        "Answers",
        "All sampled answers, including those that are not learned from.",
        (
            Metric(
                "length/mean", "tokens", "tokens that the policy wrote / answers",
                "A steady fall or rise without a gain in accuracy is a warning: see `grpo.loss.agg_mode`.", ROLLOUT,
            ),
            Metric(
                "length/truncated", "share", "answers cut at a token limit / answers",
                "Above 0.1: raise `sampling.max_new_tokens`, or leave them out with `grpo.loss.mask_truncated`.",
                ROLLOUT,
            ),
            Metric("length/turns", "turns", "turns of the policy / answers", "1 without dialogues.", ROLLOUT),
        ),
    ),
    MetricTable(
        "Policy",
        "Means over the sampled tokens that are learned from. π is the policy that is updated, π_old the policy before "
        "the step's first update, μ the engine that sampled, π_ref the policy at the start.",
        (
            Metric(
                "policy/loss", "", "the objective's negative (Shao et al. 2024, arXiv:2402.03300, eq. 3)",
                "Near 0 and noisy; it says little about progress.", GRPO,
            ),
            Metric(
                "policy/entropy", "nats per token", "mean of −Σ_v π(v) log π(v), at the sampling temperature",
                "0.1 to 1 is usual and it falls slowly. Near 0 exploration is over: raise `grpo.clip.high` or "
                "`grpo.loss.entropy_bonus`. A rise to several nats: lower `grpo.optim.lr`.", STEPS,
            ),
            Metric(
                "policy/ratio_mean", "ratio", "mean of π / π_old (Schulman et al. 2017, arXiv:1707.06347, eq. 6)",
                "1 where a step has one update; else within 0.01 of 1.", GRPO,
            ),
            Metric(
                "policy/ratio_max", "ratio", "max of π / π_old",
                "Far above 1 + `grpo.clip.high`: lower `grpo.optim.lr`.", GRPO,
            ),
            Metric(
                "policy/clip_fraction_low", "share", "tokens with A < 0 and π / π_old < 1 − clip.low / tokens",
                "0 where a step has one update. Above 0.2: fewer updates per rollout or a lower rate.", GRPO,
            ),
            Metric(
                "policy/clip_fraction_high", "share", "tokens with A > 0 and π / π_old > 1 + clip.high / tokens",
                "As `policy/clip_fraction_low`. Rare tokens are clipped first (DAPO, arXiv:2503.14476, sec. 3.1).",
                GRPO,
            ),
            Metric(
                "policy/importance_weight", "ratio", "mean of min(π_old / μ, `grpo.loss.tis_clip_max`)",
                "1 within 0.01. It corrects for an engine that samples from slightly different probabilities.", GRPO,
            ),
            Metric(
                "policy/importance_capped", "share", "tokens with π_old / μ > `grpo.loss.tis_clip_max` / tokens",
                "0 is normal. Above 0.01 engine and trainer disagree (precision) or samples are too old "
                "(`rollout.ahead`): read `policy/sampler_kl`.", GRPO,
            ),
            Metric(
                "policy/advantage_size", "", "mean of |A| over tokens, demonstrations included",
                "0.5 to 1 with `grpo.advantage=group` in groups that differ. It falls as `reward/zero_variance` rises.",
                GRPO,
            ),
            Metric(
                "policy/sampler_delta_mean", "nats", "mean of |log π_old − log μ|",
                "About 1e-6 in float32, 2e-3 in bfloat16. Above 1e-2: a precision problem, or old samples.", GRPO,
            ),
            Metric(
                "policy/sampler_delta_max", "nats", "max of |log π_old − log μ|",
                "One bad token is harmless; a steady rise is not.", GRPO,
            ),
            Metric(
                "policy/sampler_delta_mean/from_<position>", "nats",
                "the mean over tokens from this position of the answer up to the next band's",
                "Bands begin at 0, 256, 1024 and 4096. A rise with the position points to the KV cache's precision.",
                "answers of more than 256 tokens",
            ),
            Metric(
                "policy/sampler_kl", "nats", "mean of exp(d) − d − 1, d = log π_old − log μ (k3, Schulman 2020)",
                "Below 1e-3. Above 0.01 training is off-policy.", GRPO,
            ),
            Metric(
                "policy/kl", "nats", "mean of the estimator `grpo.kl.estimator` of KL(π, π_ref) (Schulman 2020)",
                "It begins at 0 and rises slowly. A jump: lower `grpo.optim.lr` or raise `grpo.kl.coef`.",
                "`grpo.kl.coef` above 0",
            ),
        ),
    ),
    MetricTable(
        "Value head",
        "With `grpo.algorithm=ppo`.",
        (
            Metric(
                "value/loss", "reward²", "mean of (V − R)² / 2, clipped by `grpo.ppo.value_clip`",
                "It falls in the first steps.", "`grpo.algorithm=ppo`",
            ),
            Metric(
                "value/explained_variance", "share", "1 − Var(R − V) / Var(R)",
                "0 predicts nothing, 1 all. Below 0 the head is worse than a constant. Absent if all returns are "
                "equal.", "`grpo.algorithm=ppo`",
            ),
        ),
    ),
    MetricTable(
        "Supervised steps",
        "A line every `sft.log_every` steps. Times are means since the last line, losses are those of this step.",
        (
            Metric("sft/loss", "nats per token", "mean of −log π over the answers' tokens", "It falls.", SFT),
            Metric(
                "sft/held_out_loss", "nats per token", "the same on held-out questions",
                "A rise while `sft/loss` falls is overfitting: `sft.patience` stops there.", "`sft.held_out` above 0",
            ),
            Metric(
                "sft/padding", "share", "1 − tokens / positions computed",
                "Above 0.5: try `sft.packing` or other `sft.questions`.", SFT,
            ),
        ),
    ),
    MetricTable(
        "Optimizer",
        "",
        (
            Metric(
                "optim/grad_norm", "norm", "‖g‖₂ before clipping, mean over the step's updates",
                "Steady within a factor of 3. Spikes far above `optim.max_grad_norm`: lower the rate.", STEPS,
            ),
            Metric("optim/param_norm", "norm", "‖θ‖₂ of the trained parameters", "Nearly constant.", STEPS),
            Metric(
                "optim/lr", "", "the learning rate of the step's first update", "As `grpo.optim` schedules it.", GRPO,
            ),
        ),
    ),
    MetricTable(
        "Rollouts",
        "Counts of the engine, all replicas together.",
        (
            Metric(
                "rollout/occupancy", "share", "tokens decoded / (steps × slots), while answers wait for a slot",
                "Above 0.9. Lower: `rollout.max_num_seqs` is large for the lengths.", ROLLOUT,
            ),
            Metric(
                "rollout/prefix_reuse", "share", "prompt tokens found in the prefix cache / prompt tokens",
                "High where questions share a schema. 0: the cache has no room (`rollout.memory`).", ROLLOUT,
            ),
            Metric("rollout/steps", "steps", "decode steps / replicas", "At least the longest answer.", ROLLOUT),
            Metric(
                "rollout/preemptions", "answers", "answers computed again for lack of KV blocks",
                "0 is normal. Many: raise `rollout.memory` or lower `rollout.max_num_seqs`.", ROLLOUT,
            ),
            Metric(
                "rollout/rounds", "rounds", "rounds of sampling",
                "Above 1 with `grpo.dynamic_sampling.max_extra_generations` alone.", ROLLOUT,
            ),
            Metric("rollout/tokens", "tokens", "tokens that the policy wrote", "", ROLLOUT),
            Metric(
                "rollout/demonstrations", "share", "chosen groups with a demonstration / chosen groups",
                "It falls as the policy solves more questions.", "`grpo.demonstrations=true`",
            ),
            Metric(
                "rollout/stale_tokens", "share", "tokens sampled by the previous policy / tokens",
                "Above 0.3 the batch is largely off-policy: read `policy/importance_capped`.", "`rollout.ahead=1`",
            ),
            Metric(
                "rollout/staleness", "updates", "`rollout/stale_tokens` × updates per rollout",
                "Mean number of updates between a token and the end of its rollout.", "`rollout.ahead=1`",
            ),
            Metric("data/epoch", "epochs", "questions taken / training questions", "", ROLLOUT),
        ),
    ),
    MetricTable(
        "Time and speed",
        "Wall time of this process. The parts of a rollout overlap.",
        (
            Metric("time/step", "s", "a whole step; of supervised steps the mean since the last line", "", STEPS),
            Metric("time/rollout", "s", "sampling, without `time/sql_wait`", "Usually the largest part.", ROLLOUT),
            Metric(
                "time/sql_wait", "s", "waiting for SQL after the last answer is sampled",
                "Near 0. More: raise `executor.threads`, or look for slow queries.", ROLLOUT,
            ),
            Metric("time/update", "s", "scores, advantages and updates", "", GRPO),
            Metric(
                "time/compile", "s", "XLA compilations since the last line",
                "0 after the first steps. Later compilations: `run.pad_to_max=true`.", EVERY,
            ),
            Metric(
                "time/compile/<program>", "s", "its part for the programs of one name", "", "lines with compilations"
            ),
            Metric(
                "time/programs/<program>", "programs", "programs of one name compiled since the last line",
                "A program is compiled for each combination of shapes.", "lines with compilations",
            ),
            Metric("time/prefill", "s", "waiting for chunks that prefill prompts", "", ROLLOUT),
            Metric("time/decode", "s", "waiting for the device, without `time/prefill`", "", ROLLOUT),
            Metric("time/host", "s", "the engine's own work on the host", "", ROLLOUT),
            Metric(
                "time/host_share", "share", "host / (host + waiting for the device)",
                "Below 0.1 on accelerators; on processors it is higher.", ROLLOUT,
            ),
            Metric("time/observation_wait", "s", "waiting for SQL within dialogues", "0 without dialogues.", ROLLOUT),
            Metric("time/eval", "s", "an evaluation of all sets", "", EVAL),
            Metric(
                "speed/tokens_per_s", "tokens/s",
                "tokens written / seconds of the rollout; in supervised steps tokens read / seconds", "", STEPS,
            ),
            Metric("speed/sql_per_s", "answers/s", "answers / seconds of the rollout", "", ROLLOUT),
            Metric(
                "speed/sql_cache_hits", "share", "queries answered from the executor's cache / queries", "", ROLLOUT,
            ),
            Metric(
                "speed/sql_shared", "share", "queries that ran once for several equal ones / queries",
                "It rises as answers of a group become equal.", ROLLOUT,
            ),
        ),
    ),
    MetricTable(
        "Evaluation during training",
        "One greedy answer per question of each set in `data.evals`, by the set's rule, in lines of phase `eval`.",
        (
            Metric(
                "eval/<set>/accuracy", "share", "sum of scores / questions with a verdict",
                "The number to compare. A question whose gold fails, or whose prompt is too long, counts as wrong. "
                "Over 200 questions the 95 % interval is about ±0.07.", EVAL,
            ),
            Metric("eval/<set>/accuracy/<difficulty>", "share", "the same by the set's difficulty", "", EVAL),
            Metric("eval/<set>/correct", "questions", "right answers", "", EVAL),
            Metric("eval/<set>/count", "questions", "questions with a verdict, those not asked included", "", EVAL),
            Metric("eval/<set>/count/<difficulty>", "questions", "the same by difficulty", "", EVAL),
            Metric("eval/<set>/valid", "share", "answers that run / questions", "At least the accuracy.", EVAL),
            Metric(
                "eval/<set>/gold_failures", "questions", "questions whose gold fails", "0; others lower the accuracy.",
                EVAL,
            ),
            Metric(
                "eval/<set>/unjudged", "questions", "questions left out, as their database failed", "Absent is normal.",
                "evaluations whose database fails",
            ),
            Metric(
                "eval/<set>/status/<status>", "questions", "answers with this status",
                "Counts, not shares. `not_asked`: the prompt exceeds `data.max_prompt_tokens`.", EVAL,
            ),
            Metric(
                "eval/<set>/truncated", "share", "answers cut at a token limit / answers",
                "Above 0.02: raise `validation.sampling.max_new_tokens`.", EVAL,
            ),
            Metric(
                "eval/<set>/finish_reason/<reason>", "answers", "answers that ended in this way",
                "`stop`, `length` (token limit) or `turns` (no turns left).", EVAL,
            ),
            Metric("eval/<set>/prefix_reuse", "share", "as `rollout/prefix_reuse`", "", EVAL),
            Metric("eval/<set>/occupancy", "share", "as `rollout/occupancy`", "", EVAL),
        ),
    ),
)  # fmt: skip
