"""Data types of the host, before and after the device.

None of these holds a JAX array, so loaders, executors, rewards and reports load without jax.
Those of the device are in `jaxrl_sql.batch`; `jaxrl_sql.training.batching.pack` converts.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, Protocol

Response = str | Sequence[tuple[str, str]]
"""What answers a prompt: a text, or a dialogue of ("assistant", text) and ("environment", text) in turn."""

Record = dict[str, Any]
"""An object of JSON by its keys, or keyword arguments by their names."""

Fields = Mapping[str, Any]
"""A record that is only read."""

Json = Any
"""A value of JSON."""


class Tokenizer(Protocol):
    """What the package calls of a Hugging Face tokenizer; a chat also needs a chat template."""

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
        """Return the encoding of a text (or of several)."""
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
"""A value of a result, as SQLite has them."""

ResultTable = tuple[Sequence[str], Sequence[Sequence[Any]]]
"""A result: the names of its columns, and its rows of cells."""

Golds = str | list[str] | list[ResultTable]
"""What an executor compares with: SQL, or a list of SQL or of results, of which any may match."""

DIALECTS: Mapping[str, str] = {
    "sqlite": "SQLite",
    "mysql": "MySQL",
    "postgresql": "PostgreSQL",
    "duckdb": "DuckDB",
}
"""The dialects that an answer may be asked for in, and their names in a text."""


DEMONSTRATION = "demonstration"
"""The finish reason of what takes an answer's place in a group and was not sampled."""


OUT_OF_TURNS = "turns"
"""The finish reason of a dialogue whose last turn holds no solution."""


CUT = frozenset({"length", "content_filter"})
"""The finish reasons of a text that is cut: at a limit of tokens, or by a server's filter."""


UNPLACED = "unplaced:"
"""The `engine_url` of a question that a server has to run, of which it is not known yet where it is."""


class JaxrlSqlError(Exception):
    """Root of every error that jaxrl_sql raises on purpose."""


class InputError(JaxrlSqlError):
    """Something that the user gave and that cannot be used: one line says what and where (exit code 2)."""


@dataclass(frozen=True, slots=True)
class Example:
    """A question on a database, with the SQL that answers it; `other_golds` answer it as well.

    `demonstration` is what a teacher answered, for supervised learning to imitate instead of the gold; it is not judged
    and may be wrong. Empty where the gold is the demonstration. `reasoning` is the thought that leads to it, if there
    is one. Answers are asked for in `dialect`, and translated to be run; golds and demonstration are SQLite's.

    With an `engine_url` they are not: answers and golds run there as they are, all in `dialect`, and the file
    `db_path` only shows what the database is like, under the names and types that it has there. The URL may hold a
    password, and is in no text that is made of the example.

    `gold_tables` are golds as results, (columns, rows), for sets that publish no SQL: they take the place of
    `gold_sql`, which may be empty then. `options` are the comparison's for this question alone (`condition_cols`,
    `ignore_order`). `suite` names every database on which an answer has to agree; empty means `db_path` alone. What is
    not `answerable` has no SQL that is right: to give none is. The columns that `hide` names are in no prompt.
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

    @property
    def database(self) -> str:
        """Return where SQL runs, as the executor takes it."""
        return self.engine_url or self.db_path

    @property
    def golds(self) -> Golds:
        """Return the results that are golds, else the gold, or all of them where there are several."""
        tables: list[ResultTable] = [*self.gold_tables]
        if tables:
            return tables
        return [self.gold_sql, *self.other_golds] if self.other_golds else self.gold_sql

    @property
    def gold_dialect(self) -> str:
        """Return the dialect in which golds and demonstration are written."""
        return self.dialect if self.engine_url else "sqlite"

    @property
    def taught_sql(self) -> str:
        """Return the SQL that supervised learning imitates."""
        return self.demonstration or self.gold_sql


@dataclass(frozen=True, slots=True)
class Prompt:
    """What the policy reads before it answers: `len(token_ids)` = P tokens."""

    uid: str
    token_ids: tuple[int, ...]
    text: str


@dataclass(frozen=True, slots=True)
class Turn:
    """One side's contribution to a trajectory.

    `logprobs` are under the full temperature-scaled distribution, `behavior_logprobs` under the (possibly truncated)
    distribution that the token was sampled from; both are empty for turns that the environment wrote. `text` is what
    the tokens say, without the one that ends the turn.
    """

    role: str
    token_ids: tuple[int, ...]
    logprobs: tuple[float, ...] = ()
    behavior_logprobs: tuple[float, ...] = ()
    text: str = ""


@dataclass(frozen=True, slots=True)
class Trajectory:
    """One of the G answers to a prompt; `finish_reason` is `stop`, `length`, OUT_OF_TURNS or DEMONSTRATION.

    A `DEMONSTRATION` is what a question is taught, in the place of an answer; it has no log-probabilities.
    """

    prompt: Prompt
    index: int
    turns: tuple[Turn, ...]
    finish_reason: str

    @property
    def completion(self) -> tuple[int, ...]:
        """Return every token after the prompt, whoever wrote it, in order."""
        return tuple(token for turn in self.turns for token in turn.token_ids)


@dataclass(frozen=True, slots=True)
class Reward:
    """A scalar for the update and the parts it was made of, by name."""

    total: float
    parts: Mapping[str, float] = field(default_factory=dict)


def whole_text(response: Response) -> str:
    """Return all of a response as one text, as the policy saw it."""
    return response if isinstance(response, str) else "".join(text for _, text in response)
