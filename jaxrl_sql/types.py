"""Host-side data types.

None of these holds a JAX array, so loaders, executors, rewards and reports load without jax. Device types are in
`jaxrl_sql.batch`; `jaxrl_sql.training.batching.pack` converts between them.

A gold is the reference answer of a question. The environment runs the policy's queries in dialogues of several turns.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, Protocol

Response = str | Sequence[tuple[str, str]]
"""The response to a prompt: a text, or an alternating dialogue of ("assistant", text) and ("environment", text)."""

Record = dict[str, Any]
"""A JSON object, or keyword arguments by name."""

Fields = Mapping[str, Any]
"""A read-only `Record`."""

Json = Any
"""A JSON value."""


class Tokenizer(Protocol):
    """The interface of a Hugging Face tokenizer that the package uses; chats require a chat template."""

    eos_token: str | None
    bos_token: str | None
    bos_token_id: int | None
    special_tokens_map: Mapping[str, str]

    def __hash__(self) -> int:
        """Return the hash of the object."""
        ...

    def __len__(self) -> int:
        """Return the number of tokens."""
        ...

    def __call__(self, text: Sequence[str], **options: Any) -> Any:
        """Return the encoding of several texts; its `input_ids` has a list of ids per text."""
        ...

    def get_vocab(self) -> dict[str, int]:
        """Return the ids of all tokens by their names."""
        ...

    def encode(self, text: str, *, add_special_tokens: bool = ...) -> list[int]:
        """Return the ids of a text."""
        ...

    def decode(self, token_ids: Sequence[int], **options: bool) -> str:
        """Return the text of ids."""
        ...

    def convert_ids_to_tokens(self, ids: int) -> str | None:
        """Return the name of a token."""
        ...

    def get_chat_template(self) -> str:
        """Return the chat template."""
        ...

    def apply_chat_template(self, conversation: Sequence[Mapping[str, str]], **options: Any) -> str:
        """Return the text of a conversation."""
        ...

    def save_pretrained(self, save_directory: str) -> object:
        """Write the tokenizer to a folder."""
        ...


Cell = None | int | float | str | bytes
"""A value of a result, of one of SQLite's types."""

ResultTable = tuple[Sequence[str], Sequence[Sequence[Any]]]
"""A result: the names of its columns, and its rows of cells."""

Golds = str | list[str] | list[ResultTable]
"""The golds of a question: SQL, or a list of SQL or of results, any of which may match."""

DIALECTS: Mapping[str, str] = {
    "sqlite": "SQLite",
    "mysql": "MySQL",
    "postgresql": "PostgreSQL",
    "duckdb": "DuckDB",
}
"""The dialects of answers, with their display names."""


DEMONSTRATION = "demonstration"
"""The finish reason of a demonstration: a target of supervised training in place of a sampled answer of a group."""


OUT_OF_TURNS = "turns"
"""The finish reason of a dialogue that used all turns without a solution."""


TRUNCATED_REASONS = frozenset({"length", "content_filter"})
"""The finish reasons of a truncated text: at a token limit, or by a server's content filter."""


NEEDS_SERVER = "unplaced:"
"""The `engine_url` of a question that requires a server whose address is not resolved yet."""


class JaxrlSqlError(Exception):
    """Base class of all errors that jaxrl_sql raises deliberately."""


class InputError(JaxrlSqlError):
    """Invalid input of the user; the one-line message names the input and the problem (exit code 2)."""


@dataclass(frozen=True, slots=True)
class Example:
    """A question about a database with its gold SQL; `other_golds` are alternatives.

    `evidence` is background knowledge that the prompt includes; `difficulty` is the set's label, for tables by
    difficulty. `demonstration` is the target of supervised training instead of the gold, such as a teacher's answer; it
    is not scored and may be wrong. If empty, the gold is the target. `reasoning` is the reasoning before the target, if
    any. Answers are requested in `dialect`, and translated to run on SQLite; golds and demonstration are in SQLite's
    dialect.

    With an `engine_url`, answers and golds run on that engine without translation, all in `dialect`. The file `db_path`
    then only provides the schema and values for prompts, with the engine's names and types. The URL may hold a password
    and must not be written to any output.

    `gold_tables` are golds as results, (columns, rows), for sets without SQL; they replace `gold_sql`, which may be
    empty. `options` are this question's options of the comparison of results, such as Spider 2.0's `condition_cols`
    (indices of the compared columns) and `ignore_order`. `suite` is a test suite: the paths of all databases, of one
    schema with different rows, on which the answer's result must match; empty means only `db_path`. If not
    `answerable`, the correct answer is to write no SQL. Columns in `hide` ("TABLE.COLUMN") are omitted from prompts.

    `messages` is the finished prompt that some published datasets include with a question, as (role, text): a system
    message, if any, a user's message, and the start of the answer, if any.
    """

    uid: str
    db_id: str
    db_path: str
    question: str
    gold_sql: str
    evidence: str = ""
    difficulty: str = ""
    demonstration: str = ""
    reasoning: str = ""
    dialect: str = "sqlite"
    other_golds: tuple[str, ...] = ()
    gold_tables: tuple[tuple[tuple[str, ...], tuple[tuple[Cell, ...], ...]], ...] = ()
    options: Mapping[str, Any] = field(default_factory=dict, hash=False)
    suite: tuple[str, ...] = ()
    answerable: bool = True
    engine_url: str = field(default="", repr=False)
    hide: tuple[str, ...] = ()
    messages: tuple[tuple[str, str], ...] = ()

    @property
    def database(self) -> str:
        """Return the executor's address of the database: the engine's URL, or the file."""
        return self.engine_url or self.db_path

    @property
    def golds(self) -> Golds:
        """Return the gold results if there are any, else the gold, or a list of several golds."""
        tables: list[ResultTable] = [*self.gold_tables]
        if tables:
            return tables
        return [self.gold_sql, *self.other_golds] if self.other_golds else self.gold_sql

    @property
    def gold_dialect(self) -> str:
        """Return the dialect of golds and demonstration."""
        return self.dialect if self.engine_url else "sqlite"

    @property
    def target_sql(self) -> str:
        """Return the SQL target of supervised training."""
        return self.demonstration or self.gold_sql


@dataclass(frozen=True, slots=True)
class Prompt:
    """The input of the policy: `len(token_ids)` = P tokens."""

    uid: str
    token_ids: tuple[int, ...]
    text: str


@dataclass(frozen=True, slots=True)
class Turn:
    """A turn of the policy or the environment in a trajectory.

    `role` is `assistant` for the policy, or `environment`. `logprobs` are under the full temperature-scaled
    distribution, `behavior_logprobs` under the distribution that the token was sampled from, which top-p and similar
    settings may truncate. Both are empty for turns of the environment. `text` is the decoded text without the token
    that ends the turn.
    """

    role: str
    token_ids: tuple[int, ...]
    logprobs: tuple[float, ...] = ()
    behavior_logprobs: tuple[float, ...] = ()
    text: str = ""


@dataclass(frozen=True, slots=True)
class Trajectory:
    """The answer `index` of the G answers to a prompt; `index` is 0 to G - 1.

    `finish_reason` is `stop`, `length` (the token limit), OUT_OF_TURNS or DEMONSTRATION. A demonstration replaces an
    answer by the question's supervised target; it has no log-probabilities.
    """

    prompt: Prompt
    index: int
    turns: tuple[Turn, ...]
    finish_reason: str

    @property
    def completion(self) -> tuple[int, ...]:
        """Return all tokens after the prompt in order, of the policy and the environment."""
        return tuple(token for turn in self.turns for token in turn.token_ids)


@dataclass(frozen=True, slots=True)
class Reward:
    """The total reward for the update, and its components by name."""

    total: float
    parts: Mapping[str, float] = field(default_factory=dict)


def response_text(response: Response) -> str:
    """Return a response as a single text, as the policy saw it."""
    return response if isinstance(response, str) else "".join(text for _, text in response)
