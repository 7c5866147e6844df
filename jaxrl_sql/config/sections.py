"""What can be set, section by section, with its defaults and what each means."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Annotated

from jaxrl_sql.config.commands import AugmentConfig, DistillConfig, EvaluateConfig, FilterConfig, VerbalConfig
from jaxrl_sql.config.rules import OneOf, PositiveFloat, PositiveInt


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


@dataclass(frozen=True)
class LoraConfig:
    """Low-rank adapters, trained beside weights that stay as they are; `rank` 0 trains the weights themselves.

    `targets`: the weights that get adapters, by name or pattern: q, k, v, o, gate, up, down, or * for all of them.
    What is added to a weight is alpha / rank times the product of its two small matrices.
    """

    rank: int = 0
    alpha: PositiveFloat = 16.0
    targets: list[str] = field(default_factory=lambda: ["*"])


@dataclass(frozen=True)
class ModelConfigSection:
    """The policy: a folder, hub name or GGUF file in `checkpoint`, or else the shape of a model made from scratch.

    `shape` names a published model's sizes (`models/shapes.py`) in place of the numbers here; `plan` takes it in place
    of a checkpoint too.

    `init` is `plain` or `copying` (attention that copies from the start, see `models/induction_init.py`). Weights are
    kept in `dtype`, activations and products are in `compute_dtype` (`same`: as weights). `remat`: what the backward
    pass computes again instead of keeping it: `none`, `full`, or all but values named as in `models/transformer.py`.
    `attention` is the backend of prompts and updates (`models/attention/`): `auto` takes the platform's own where
    it serves. `frozen` names weights, or patterns of them, that are not trained, such as `embed`, the table of tokens.
    A device keeps up to `kept_logits_mib` MiB of the logits of an update's part for its backward pass; where there are
    more, they are made in pieces, twice. Where the matrix to logits is not trained (`frozen`, adapters) none are kept,
    and each piece is made once.
    """

    checkpoint: str = ""
    shape: str = ""
    init: Annotated[str, OneOf("plain", "copying")] = "plain"
    family: Annotated[str, OneOf("gemma3_text", "llama", "qwen2", "qwen3")] = "qwen3"
    d_model: PositiveInt = 192
    n_layers: PositiveInt = 4
    n_heads: PositiveInt = 6
    n_kv_heads: PositiveInt = 2
    head_dim: PositiveInt = 32
    d_ff: PositiveInt = 512
    max_positions: PositiveInt = 2048
    tie_embeddings: bool = True
    rope_theta: PositiveFloat = 10_000.0
    dtype: Annotated[str, OneOf("float32", "bfloat16")] = "float32"
    compute_dtype: Annotated[str, OneOf("same", "float32", "bfloat16")] = "same"
    remat: str = "none"
    attention: Annotated[str, OneOf("auto", "xla", "amx", "cudnn", "splash")] = "auto"
    frozen: list[str] = field(default_factory=list)
    kept_logits_mib: PositiveInt = 256
    lora: LoraConfig = field(default_factory=LoraConfig)


@dataclass(frozen=True)
class OptimConfig:
    """AdamW or Adafactor with a warm-up and a `constant`, `cosine` or `linear` schedule after it; `lr` is the peak.

    The rate stays at `warmup_from` times the peak for `flat_steps` before the warm-up (0: that of its first step).
    `moments` is the type that AdamW's are kept in. Norms and biases do not decay. Adafactor (Shazeer and Stern 2018,
    arXiv:1804.04235) keeps no first moment and factors the second; betas and eps are not for it.
    """

    kind: Annotated[str, OneOf("adamw", "adafactor")] = "adamw"
    moments: Annotated[str, OneOf("float32", "bfloat16")] = "float32"
    lr: PositiveFloat = 1e-3
    schedule: Annotated[str, OneOf("constant", "cosine", "linear")] = "cosine"
    warmup_steps: int = 50
    final_lr_ratio: float = 0.1
    flat_steps: int = 0
    warmup_from: float = 0.0
    beta1: float = 0.9
    beta2: float = 0.95
    eps: PositiveFloat = 1e-8
    weight_decay: float = 0.0
    max_grad_norm: PositiveFloat = 1.0


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


@dataclass(frozen=True)
class SamplingConfig:
    """How answers are sampled in training.

    top_k 0, top_p 1, min_p 0 and repetition_penalty 1 mean the full distribution; strings in `stop` end an answer (or a
    turn), beside the recipe's; where `data.prompt` is `compact` and there are none, the semicolon that ends the
    statement does. With `turns` above 1, where the recipe has several, `max_new_tokens` is for each of the
    policy's turns and `max_total_tokens` for all turns and observations together.
    """

    temperature: PositiveFloat = 1.0
    top_k: int = 0
    top_p: float = 1.0
    min_p: float = 0.0
    repetition_penalty: PositiveFloat = 1.0
    stop: list[str] = field(default_factory=list)
    max_new_tokens: PositiveInt = 96
    turns: PositiveInt = 1
    max_total_tokens: int = 0


@dataclass(frozen=True)
class RolloutConfig:
    """What the engine that samples training answers has: `max_num_seqs` decode slots, answers written side by side.

    Its KV cache takes at most the share `memory` of a device's memory (of the machine's, where devices are processors).
    At the start of a run that becomes KV blocks, of prompts, completions and cached prefixes, which its `config.yaml`
    keeps: a run that goes on has as many on any machine. 0 leaves them to be found; what has no room waits.

    `exact`: the policy is compared with the engine's own log-probabilities of its tokens (under the full distribution)
    in place of the trainer's under the same policy. Both numbers are then one program's: nothing is scored for it, and
    what sampler and trainer differ by is in the ratio, where the clip sees it, and no longer in `policy/sampler_…`.

    `attention`: what reads the cache in a decode step, `xla`, or on one GPU or TPU a kernel of ours, `pallas`
    (`models/attention/paged_kernel.py`).

    `mesh`: how the run's devices lie while answers are sampled. `training`: as they train. `8x4`, replicas x tensor:
    eight copies of the weights, each over four devices of one process, with its share of the slots; nothing crosses
    copies, and several turns may have several processes. `auto`: what samples fastest by formula, of the copies that
    fit and `training`, which it is on processors. KV blocks are then a copy's.

    `ahead` of 1: slots that a rollout's last answers leave free take those to the next rollout's questions, which go on
    there under the newer policy. Each token keeps the log-probability that it was drawn by, and `grpo.tis_clip_max`
    bounds the weight that makes up for it; `rollout/stale_tokens` is their share, `rollout/staleness` the updates that
    a token was behind in the mean when its rollout ended. (What the sampler and the trainer differ by,
    `policy/sampler_…`, then has the policy's own way in it.) For answers of one turn, and worth it where few answers
    wait for the longest.
    """

    max_num_seqs: PositiveInt = 128
    memory: PositiveFloat = 0.4
    prompt_blocks: int = 0
    completion_blocks: int = 0
    prefix_blocks: int = 0
    exact: bool = False
    attention: Annotated[str, OneOf("xla", "pallas")] = "xla"
    mesh: str = "auto"
    ahead: int = 0


@dataclass(frozen=True)
class GrpoConfig:
    """The objective and its numbers (RL steps of `prompts` x `num_generations` answers; `minibatches` updates a step).

    `gradient_accumulation_steps` cuts each update's batch into that many parts, computed one after another for less
    memory (0: as many as leave a prompt and its answers at a time to each shard of `mesh.data` x `mesh.fsdp`). In its
    place `max_tokens_per_device` above 0 says how many tokens, of prompts and answers with their padding, a shard may
    run at a time: as many prompts as they allow, and where a group is too much some of its answers at a time.
    `packing` puts a group's answers into fewer rows of the longest answer's length, each seeing itself alone: the same
    sums over less padding. Of the prompts of an update each `questions` in a row are of one database, whose schema is
    then run once for them.

    `oversample` times as many questions are answered as the update takes: those whose answers differ in reward first.
    Up to `max_extra_generations` more rounds are generated while too few do. `filter_groups`: which groups teach:
    `reward`, those whose rewards differ, or `accuracy`, those with right and wrong answers, as DAPO has it: else what a
    reward pays for wrong answers that run is all that hard questions teach. With `demonstrations` a group without a
    right answer learns its question's demonstration, the gold where it has none, in place of its last answer, and is
    chosen among others as if that had been sampled (in a chat only where the question has a `reasoning`).
    One rollout serves the updates of `steps_per_generation` steps (1: online; more: batch RL, on stored
    log-probabilities). loss_agg_mode: sequence_mean
    | token_mean | constant; advantage: group | batch | batch_centered | none | leave_one_out (`group` divides by the
    group's standard deviation, with `group_std_ddof` 0 or 1: torch's, and so TRL's and verl's, is 1; `batch` by that
    of all rewards, as TRL does, `batch_centered` by that of the rewards without their groups' means);
    kl_kind: k1 | k2 | k3, with coefficient `kl_coef` (0: no KL), as a loss or taken off the reward by `kl_in` loss |
    reward (k1 in the reward only); `tis_clip_max` caps exp(old - behavior), 0 leaves that weight out.
    importance_sampling_level: token | sequence (GSPO), the second with clip bounds of its own size (its paper: 3e-4 and
    4e-4). `num_iterations`: how often a step's batch is learned, `minibatches` updates each time.
    `max_completion_tokens`: what `constant` divides by (0: the most tokens that an answer may have, of all its turns).

    algorithm: grpo | ppo. PPO has a value head instead of a group to compare with, so `advantage` is not read and a
    group may be 1: advantages are GAE's with `discount` and `gae_lambda`, normalised over the batch's trained tokens.
    The head's loss has the weight `value_coef`, and its values move at most `value_clip` a step (0: freely).
    """

    steps: int = 100
    prompts: PositiveInt = 16
    questions: PositiveInt = 1
    oversample: PositiveInt = 1
    max_extra_generations: int = 0
    filter_groups: Annotated[str, OneOf("reward", "accuracy")] = "reward"
    demonstrations: bool = False
    steps_per_generation: PositiveInt = 1
    num_generations: PositiveInt = 8
    minibatches: PositiveInt = 1
    gradient_accumulation_steps: int = 1
    max_tokens_per_device: int = 0
    packing: bool = False
    clip_low: float = 0.2
    clip_high: float = 0.2
    dual_clip: float = 0.0
    kl_coef: float = 0.0
    kl_kind: Annotated[str, OneOf("k1", "k2", "k3")] = "k3"
    entropy_bonus: float = 0.0
    loss_agg_mode: Annotated[str, OneOf("sequence_mean", "token_mean", "constant")] = "token_mean"
    max_completion_tokens: int = 0
    advantage: Annotated[str, OneOf("group", "batch", "batch_centered", "none", "leave_one_out")] = "group"
    group_std_ddof: int = 0
    mask_truncated: bool = False
    tis_clip_max: float = 2.0
    optim: OptimConfig = field(default_factory=lambda: OptimConfig(lr=1e-4, schedule="constant", warmup_steps=5))
    num_iterations: PositiveInt = 1
    kl_in: Annotated[str, OneOf("loss", "reward")] = "loss"
    importance_sampling_level: Annotated[str, OneOf("token", "sequence")] = "token"
    algorithm: Annotated[str, OneOf("grpo", "ppo")] = "grpo"
    gae_lambda: float = 1.0
    discount: float = 1.0
    value_coef: float = 0.5
    value_clip: float = 0.2


@dataclass(frozen=True)
class SecondStageConfig:
    """A second stage of `steps` steps from the best evaluated checkpoint of the first (PaVeRL-SQL); 0 steps: none.

    Its rate begins at that of the first stage's peak when accuracy rose and levelled off, at half of the rate that the
    best checkpoint had when it only fluctuated, and falls by a cosine to `final_lr_ratio` of it.
    """

    steps: int = 0
    final_lr_ratio: float = 0.1


@dataclass(frozen=True)
class DatabasesConfig:
    """Where each dialect of `data.dialects` runs: the folder of questions that `jaxrl-sql data copy` wrote.

    For a published set that a server has to run, BIRD's mini-dev or defog's, it is the server's URL. A server's
    password is not in it: PGPASSWORD and MYSQL_PWD hold it. What is `translated`, MySQL's alone, is run by SQLite.
    """

    mysql: str = ""
    postgresql: str = ""
    duckdb: str = ""


@dataclass(frozen=True)
class ExecutorConfig:
    """Limits of the SQL executor; training verdicts come from `vm_steps`, so that they do not depend on the clock.

    Other engines than SQLite count no steps: there a run has `engine_timeout_ms`, and what that stops twice is not
    learned from. `databases` says where other dialects run.

    `isolation`: `process` runs the SQL in worker processes, which can be killed and die alone; `thread` in this one.
    `sqlite_version`, such as 3.40.1, refuses functions and syntax that later versions of SQLite added, as a published
    scorer on that version does (empty: no restriction). It is refused with MySQL that is translated.
    """

    threads: int = 0
    isolation: Annotated[str, OneOf("process", "thread")] = "process"
    timeout_ms: PositiveInt = 30_000
    vm_steps: PositiveInt = 20_000_000
    max_rows: PositiveInt = 100_000
    max_bytes: PositiveInt = 64 << 20
    engine_timeout_ms: PositiveInt = 30_000
    sqlite_version: str = ""
    databases: DatabasesConfig = field(default_factory=DatabasesConfig)


@dataclass(frozen=True)
class ValidationConfig:
    """Greedy evaluation before and after training, and every `every` steps (0: never in between).

    `turns`: how many the policy has; 0: as in training. `rule`: by what its answers are judged (empty: the recipe's own
    rule, or the set's where the recipe has none; Spider 2, EHRSQL and Defog keep theirs), each on its question's own
    database. Runs of several recipes are compared by one rule for all.
    """

    every: int = 0
    max_new_tokens: PositiveInt = 96
    max_num_seqs: PositiveInt = 128
    turns: int = 0
    rule: str = ""


@dataclass(frozen=True)
class MeshConfig:
    """Devices along each mesh axis, of all processes together; -1 takes what is left.

    `processes` is how many processes the run has; 0 asks the cluster that started them.
    """

    data: int = 1
    fsdp: int = -1
    tensor: int = 1
    processes: int = 1


@dataclass(frozen=True)
class RunConfig:
    """The run folder and what is kept in it.

    A checkpoint is saved every `checkpoint_every` steps, and after each evaluation when the `keep_best` best by
    `best_by` are kept beside the newest: a metric by its whole name, or a word such as `accuracy`, which is the mean of
    `eval/<split>/accuracy` over the splits; more is better. `keep_rollouts` bounds how many answers of rollouts are
    kept, and how many of evaluations, for `jaxrl-sql view`; the oldest go first, and 0 keeps none. `samples_per_step`
    are plain lines of samples.jsonl. `trackers` are where numbers are shown beside metrics.jsonl, of tensorboard, wandb
    and trackio; the last two file the run under `project`.
    `compilation_cache` is the folder where compiled programs are kept for other runs: `auto` is one in the user's
    cache, for runs of one process; empty, none are kept.
    `pad_to_max` compiles a third of the programs, each for the most there is: all prompts are padded to the longest
    (`jaxrl-sql evaluate`: to `data.max_prompt_tokens`), supervised answers to the most they may have, and caches begin
    at their largest. For runs that are short beside their compiler.
    """

    dir: str = "runs/run"
    resume: bool = False
    checkpoint_every: PositiveInt = 50
    keep_checkpoints: PositiveInt = 2
    samples_per_step: int = 4
    keep_rollouts: int = 100_000
    display: Annotated[str, OneOf("auto", "rich", "plain", "none")] = "auto"
    compilation_cache: str = "auto"
    keep_best: int = 0
    best_by: str = "accuracy"
    trackers: list[str] = field(default_factory=lambda: ["tensorboard"])
    project: str = "jaxrl-sql"
    pad_to_max: bool = False


@dataclass(frozen=True)
class HealthConfig:
    """When a run that learns nothing any more stops; what is no finite number always stops it.

    `entropy_floor`, in nats a token: below it for `entropy_steps` steps in a row the run stops (0: never).
    `zero_advantage_patience`: so many rollouts in a row without a group whose rewards differ stop it (0: never).
    """

    entropy_floor: float = 0.0
    entropy_steps: int = 10
    zero_advantage_patience: int = 100


@dataclass(frozen=True)
class TrainConfig:
    """A whole run; `configs/*.yaml` are overlays of this.

    `recipe` is the name of a published system, or `FILE.py:NAME` or `module:NAME` of one's own, which is imported.
    """

    seed: int = 0
    recipe: str = "arctic"
    data: DataConfig = field(default_factory=DataConfig)
    model: ModelConfigSection = field(default_factory=ModelConfigSection)
    sft: SftConfig = field(default_factory=SftConfig)
    sampling: SamplingConfig = field(default_factory=SamplingConfig)
    rollout: RolloutConfig = field(default_factory=RolloutConfig)
    grpo: GrpoConfig = field(default_factory=GrpoConfig)
    second_stage: SecondStageConfig = field(default_factory=SecondStageConfig)
    executor: ExecutorConfig = field(default_factory=ExecutorConfig)
    validation: ValidationConfig = field(default_factory=ValidationConfig)
    mesh: MeshConfig = field(default_factory=MeshConfig)
    run: RunConfig = field(default_factory=RunConfig)
    health: HealthConfig = field(default_factory=HealthConfig)
    filter: FilterConfig = field(default_factory=FilterConfig)
    distill: DistillConfig = field(default_factory=DistillConfig)
    augment: AugmentConfig = field(default_factory=AugmentConfig)
    evaluate: EvaluateConfig = field(default_factory=EvaluateConfig)
    verbal: VerbalConfig = field(default_factory=VerbalConfig)
