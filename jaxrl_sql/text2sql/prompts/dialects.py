"""Questions in dialects other than SQLite's: their selection, their servers, and their target answers.

A question in another dialect either runs on that engine, on a copy of the database with a gold in its dialect
(`engine_url` is set), or its answer is translated to SQLite and runs there.
"""

from __future__ import annotations

import dataclasses
import zlib
from collections.abc import Iterable, Mapping, Sequence

from jaxrl_sql.runtime.control_tokens import ControlTokens
from jaxrl_sql.text2sql.env.address import is_address, parse_address
from jaxrl_sql.text2sql.env.dialect import from_sqlite
from jaxrl_sql.text2sql.env.turns import TAGS
from jaxrl_sql.text2sql.schema.read import read_schema
from jaxrl_sql.types import DIALECTS, NEEDS_SERVER, Example, InputError, Response


class DialectAssigner:
    """Assign other dialects to examples, deterministically by their ids.

    `shares[dialect]` is the share of examples, from 0 to 1; the remaining ones stay in SQLite's dialect.
    `copies[dialect]` has the questions on an engine's copies of the databases, from `jaxrl-sql data copy`; an example
    is replaced by the one with its id. An example without a copy, because its gold differs on that engine, stays
    unchanged. A dialect without copies (MySQL) is translated for execution. It works on single examples, so that a set
    can be read lazily.
    """

    def __init__(self, shares: Mapping[str, float], copies: Mapping[str, Sequence[Example]]) -> None:
        self.shares = [(dialect, share) for dialect, share in shares.items() if share and dialect != "sqlite"]
        self.copies = {dialect: {example.uid: example for example in examples} for dialect, examples in copies.items()}

    def __call__(self, example: Example) -> Example:
        """Return the example in its assigned dialect."""
        dialect = self._dialect(example.uid)
        if dialect == "sqlite" or example.engine_url:  # an example on an engine already has that engine's gold
            return example
        if dialect not in self.copies:
            return dataclasses.replace(example, dialect=dialect)
        engine_example = self.copies[dialect].get(example.uid)
        if engine_example is None:
            return example
        return dataclasses.replace(engine_example, reasoning=example.reasoning, options=example.options)

    def _dialect(self, uid: str) -> str:
        """Return the dialect whose part of [0, 1), as large as its share, contains the number of an id."""
        number = _uniform_number(uid)
        for dialect, share in self.shares:
            if number < share:
                return dialect
            number -= share
        return "sqlite"


def with_server_urls(examples: Sequence[Example], servers: Mapping[str, str]) -> tuple[Example, ...]:
    """Return examples with the URL of their dialect's server in place of the placeholder `NEEDS_SERVER`.

    `servers[dialect]` is the URL. If it names a database, the tables of all databases of the set are in that one, as in
    BIRD's mini-dev. Otherwise the server has a database with the name `db_id`. Raises InputError if a dialect has no
    server.
    """

    def with_url(example: Example) -> Example:
        if example.engine_url != NEEDS_SERVER:
            return example
        url = servers[example.dialect]
        key = f"executor.databases.{example.dialect}"
        if not is_address(url):
            wrong_value = f", not {url}" if url else ""
            raise InputError(
                f"{example.uid} runs on {DIALECTS[example.dialect]}: {key} is its server's URL{wrong_value}"
            )
        address = parse_address(url)
        return dataclasses.replace(example, engine_url=address.url(address.database or example.db_id))

    return tuple(map(with_url, examples))


def check_translation_support(examples: Iterable[Example], sqlite_version: str) -> None:
    """Raise InputError if questions have translated answers and an earlier SQLite version is required.

    The translation uses functions of later versions, so an error would name functions that the model never wrote.
    """
    if not sqlite_version:
        return
    is_translated = (example for example in examples if example.dialect == "mysql" and not example.engine_url)
    if translated := next(is_translated, None):
        raise InputError(
            f"{translated.uid} asks for MySQL, whose translation for SQLite needs functions of later versions than "
            f"executor.sqlite_version={sqlite_version}: leave that empty, or use questions on copies on a server"
        )


def target_sql(example: Example) -> str:
    """Return the SQL of the supervised target in the example's dialect; unchanged if it has no translation."""
    sql = example.target_sql
    if example.dialect == "sqlite" or example.engine_url:
        return sql
    names = {column.name for table in read_schema(example.db_path).tables for column in table.columns}
    return from_sqlite(sql, example.dialect, names) or sql


def escape_answer(response: Response, example: Example, control: ControlTokens) -> Response:
    """Return an example's target answer with escaped control tokens in its thought, SQL and observations.

    An escaped control token, such as `<|im_end|>` in data, is tokenized as ordinary text. The tags of answers stay.
    """
    if isinstance(response, str):
        return _escape_text(response, example, control)
    return [
        (role, _escape_text(text, example, control) if role == "assistant" else control.escape(text, exclude=TAGS))
        for role, text in response
    ]


def _escape_text(text: str, example: Example, control: ControlTokens) -> str:
    """Escape the control tokens of an answer, except for the answer tags that the recipe's format adds."""
    sources = (example.reasoning, example.target_sql, example.question, example.evidence)
    if all(control.escape(source) == source for source in sources):
        return text
    for source in (example.reasoning, example.target_sql, target_sql(example)):
        text = text.replace(source, control.escape(source)) if source else text
    return control.escape(text, exclude=TAGS)  # in case a recipe changes the content


def _uniform_number(uid: str) -> float:
    """Return a pseudorandom number in [0, 1) from the id."""
    return zlib.crc32(uid.encode()) / 2**32
