"""The section `data`: questions, databases and prompts."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import asdict, dataclass, field
from typing import Annotated

from jaxrl_sql.config.fields import Day, NotEmpty, OneOf, PositiveInt, Share, Synonyms, password_error

# Rounding error that the sum of shares may have.
_TOLERANCE = 1e-6


@dataclass(frozen=True)
class DialectsConfig:
    """Shares of the training questions by requested dialect, which sum to 1."""

    sqlite: Annotated[Share, "Share of the training questions that ask for SQLite."] = 1.0
    mysql: Annotated[Share, "Share of the training questions that ask for MySQL (`executor.databases.mysql`)."] = 0.0
    postgresql: Annotated[
        Share, "Share of the training questions that ask for PostgreSQL (`executor.databases.postgresql`)."
    ] = 0.0
    duckdb: Annotated[Share, "Share of the training questions that ask for DuckDB (`executor.databases.duckdb`)."] = 0.0

    def find_errors(self, name: str) -> Iterator[str]:
        """Yield a line if the shares do not sum to 1."""
        shares = asdict(self)
        if abs(sum(shares.values()) - 1) >= _TOLERANCE:
            yield f"{name} {shares} are shares: they add up to {sum(shares.values()):g}, and must add up to 1"


@dataclass(frozen=True)
class RetrievalConfig:
    """Database values that match a question and are shown in its prompt."""

    top_k: Annotated[
        int,
        "Number of database values, matched with the question, that a prompt shows; 0 shows none, OmniSQL uses 20.",
    ] = 0
    placement: Annotated[
        str,
        OneOf("examples", "question"),
        "Position of the matched values. `examples` puts them first among a column's examples, if the schema has any. "
        "`question` puts them before the question, so that all questions of a database share one computed schema.",
    ] = "examples"
    synonyms: Annotated[
        str,
        "Folder of static word vectors (Model2Vec), which match values that a question names by a synonym. If empty, "
        "values match literally only.",
    ] = ""

    def find_errors(self, name: str) -> Iterator[str]:
        """Yield a line for each contradiction between the section's fields."""
        if self.synonyms and not self.top_k:
            yield (
                f"{name}.synonyms={self.synonyms} extends the retrieved values, which are disabled: set {name}.top_k, "
                "for example to 20"
            )


@dataclass(frozen=True)
class ChatConfig:
    """The messages of a chat (`data.prompt` of `chat`, or of `given` without a template)."""

    template: Annotated[
        str,
        "Jinja file of the chat's messages, or the name of a shipped one (`generic`, or a recipe's); if empty, the "
        "recipe's own.",
    ] = ""
    thinking: Annotated[
        str,
        OneOf("template", "think", "no_think"),
        "Thinking mode of a chat template that has such a switch; `template` uses the template's default.",
        Synonyms(
            trl="chat_template_kwargs", verl="data.apply_chat_template_kwargs", note="their entry enable_thinking"
        ),
    ] = "template"
    assistant_prefill: Annotated[
        str,
        "Prefix of every answer, which is not generated; if empty, the chat template's.",
    ] = ""
    date: Annotated[
        str,
        Day(),
        "Date, such as 2026-11-29, for a chat template that includes the current date. If empty, the date at the start "
        "of the run or evaluation; a run's model is evaluated with the run's date.",
    ] = ""


@dataclass(frozen=True)
class TokenizerConfig:
    """The tokenizer, and the token that ends an answer."""

    path: Annotated[
        str,
        "Folder of the tokenizer. If empty, the tokenizer of the checkpoint or of the generated questions is used, or "
        "one of `data.tokenizer.vocab_size` tokens is trained.",
        Synonyms(verl="actor_rollout_ref.model.tokenizer_path"),
    ] = ""
    vocab_size: Annotated[int, "Number of tokens of a tokenizer that is trained."] = 4096
    eos_token: Annotated[
        str,
        "Token that ends every trained and sampled answer. If empty, the end-of-turn token of a chat template, or the "
        "tokenizer's `eos_token`.",
        Synonyms(trl="eos_token"),
    ] = ""


@dataclass(frozen=True)
class SelectConfig:
    """The questions of each split that are used."""

    include_ids: Annotated[
        str,
        "File of question ids, such as `jaxrl-sql data filter` writes; other training questions are omitted. If empty, "
        "all are used.",
    ] = ""
    limit_train: Annotated[
        int,
        "Number of training questions that are used, the first ones of the split; 0 uses all.",
        Synonyms(verl="data.train_max_samples", note="verl's -1 is 0 here"),
    ] = 0
    limit_eval: Annotated[
        int,
        "Number of questions of each evaluated split that are used, the first ones; 0 uses all.",
        Synonyms(verl="data.val_max_samples", note="verl's -1 is 0 here"),
    ] = 0
    drop_empty_gold: Annotated[bool, "Omit training questions whose gold query returns no rows."] = True


@dataclass(frozen=True)
class DataConfig:
    """Source of questions and databases, and format of prompts."""

    source: Annotated[
        str,
        OneOf("folder", "synth"),
        "Origin of the questions. In a `folder` each split is a folder of `data.dir` with questions.jsonl and "
        "databases/, or a published benchmark's. `synth` generates them into `data.dir` from `data.seed`, with the "
        "splits train, dev and dev_unseen (questions on databases without training questions).",
    ] = "folder"
    dir: Annotated[
        str,
        "Folder with the questions and databases; if empty, generated questions have `data-cache/synth-SEED`, and "
        "other sources are refused.",
        Synonyms(trl="dataset_name", note="a folder, not a data set of the hub"),
    ] = ""
    database: Annotated[
        str,
        "Database of the questions in your own files: a SQLite file, `duckdb:FILE`, or a server's URL without the "
        "password, such as `postgresql://USER@HOST/DATABASE?roles=16`. Golds and answers run there, in its dialect. A "
        "folder, `duckdb:FOLDER`, or a URL without a database has those that the questions name. If empty, questions "
        "name their databases, or use the only file next to them.",
    ] = ""
    seed: Annotated[int, "Seed of the generated questions (`data.source` of `synth`)."] = 0
    train: Annotated[
        str,
        "Split of the training questions.",
        Synonyms(trl="dataset_train_split", verl="data.train_files", note="verl names files"),
    ] = "train"
    evals: Annotated[
        list[str],
        NotEmpty(
            "name at least one split to evaluate on, as runs do before and after training "
            "(data.select.limit_eval=1 makes that short)"
        ),
        "Splits that a run is evaluated on.",
        Synonyms(trl="dataset_test_split", verl="data.val_files", note="several splits; verl names files"),
    ] = field(default_factory=lambda: ["dev"])
    tokenizer: TokenizerConfig = field(default_factory=TokenizerConfig)
    prompt: Annotated[
        str,
        OneOf("auto", "compact", "tagged", "chat", "given"),
        "Format of the prompts. `chat` uses the tokenizer's chat template; `auto` is `chat` if the tokenizer has one, "
        "otherwise `compact`. `compact` prompts are short and their answers are SQL only; `tagged` prompts are as "
        "short, with answers in the recipe's format. `given` uses the prompt that a published training set contains "
        "for each question.",
    ] = "auto"
    chat: ChatConfig = field(default_factory=ChatConfig)
    max_prompt_tokens: Annotated[
        PositiveInt,
        "Maximum number of tokens of a prompt; questions with longer prompts are omitted, or pruned with `data.prune`.",
        Synonyms(verl="data.max_prompt_length"),
    ] = 2048
    select: SelectConfig = field(default_factory=SelectConfig)
    dialects: DialectsConfig = field(default_factory=DialectsConfig)
    schema: Annotated[
        str,
        OneOf("recipe", "compact", "ddl", "omnisql", "profile", "names_only", "raw_ddl", "omnisql_strict"),
        "Format of the database in prompts. `recipe` is the recipe's format in a chat and `compact` otherwise. "
        "`compact` has one line per table, `ddl` has CREATE TABLE statements. `omnisql` and `profile` add comments "
        "with descriptions and values to these. `names_only` lists the tables' names. `raw_ddl` and `omnisql_strict` "
        "have the exact text of published code: the statements that the database stores, and OmniSQL's format.",
    ] = "recipe"
    traces: Annotated[
        str,
        "File of reasoning and SQL by question id, such as `jaxrl-sql distill` writes. The supervised phase trains on "
        "them instead of the gold queries; if empty, it trains on the gold queries.",
    ] = ""
    stream_above: Annotated[
        int,
        "Number of training questions above which each question is read, and its gold query run, only when a step "
        "needs it; 0 always reads all at the start. The supervised phase does not support reading on demand.",
    ] = 100_000
    prune: Annotated[
        bool,
        "Prune the schema of a training prompt that is longer than `data.max_prompt_tokens`, instead of omitting the "
        "question. Keys and the columns that the gold query reads are kept.",
    ] = False
    retrieval: RetrievalConfig = field(default_factory=RetrievalConfig)
    shots: Annotated[
        int,
        "Number of few-shot examples before each question: the most similar training questions on other databases, "
        "with their SQL. `data.train`, `data.select.include_ids` and `data.select.limit_train` select them; 0 shows "
        "none.",
    ] = 0
    schema_budget: Annotated[
        int,
        "Maximum number of tokens of a schema. A longer one is reduced to the tables and columns most relevant to the "
        "question; 0 sets no limit.",
    ] = 0
    hide: Annotated[
        list[str],
        "Columns (`table.column`) and tables that are hidden from prompts, retrieved values and queries, for SQLite "
        "files only. `SELECT *` from such a table is rejected; questions whose gold query reads one are omitted.",
    ] = field(default_factory=list)

    @property
    def is_chat(self) -> bool:
        """Return whether the tokenizer's chat template renders the prompts."""
        return self.prompt in ("chat", "given")

    def find_errors(self, name: str) -> Iterator[str]:
        """Yield a line if the database's URL holds a password, and for settings that would change a given prompt."""
        yield from password_error(f"{name}.database", self.database)
        if self.schema == "raw_ddl" and (self.hide or self.prune or self.schema_budget):
            yield (
                f"{name}.schema=raw_ddl is the text of the database, of which nothing is left out: {name}.hide, "
                f"{name}.prune and {name}.schema_budget must not be set"
            )
        if self.prompt != "given":
            return
        changes = {
            "chat.template": self.chat.template,
            "schema": self.schema if self.schema != "recipe" else "",
            "prune": self.prune,
            "retrieval.top_k": self.retrieval.top_k,
            "shots": self.shots,
            "schema_budget": self.schema_budget,
            "hide": self.hide,
            "dialects": asdict(self.dialects) if self.dialects.sqlite < 1 else "",
        }
        if changed := [f"{name}.{key}={value}" for key, value in changes.items() if value]:
            yield f"{', '.join(changed)}: {name}.prompt=given is the prompt of a row, which no setting changes"
