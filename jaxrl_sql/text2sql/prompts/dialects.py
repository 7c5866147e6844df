"""Which questions ask for another dialect than SQLite's, where they run, and what is taught for an answer to them."""

from __future__ import annotations

import dataclasses
import zlib
from collections.abc import Iterable, Mapping, Sequence

from jaxrl_sql.runtime.control_tokens import ControlTokens
from jaxrl_sql.text2sql.env.address import is_address, parse_address
from jaxrl_sql.text2sql.env.dialect import from_sqlite
from jaxrl_sql.text2sql.env.turns import TAGS
from jaxrl_sql.text2sql.schema.read import read_schema
from jaxrl_sql.types import DIALECTS, UNPLACED, Example, InputError, Response


class InDialects:
    """Lets examples ask for other dialects, by `shares`, always the same ones: their ids decide.

    `copies[dialect]` are the questions on an engine's copies of the databases, as `jaxrl-sql data copy` writes them: an
    example becomes the one of its id there. One that is not among them, because its gold gives something else on that
    engine, stays as it is. A dialect without copies, MySQL's, is translated to be run. Example by example, so that a
    set is changed as it is read.
    """

    def __init__(self, shares: Mapping[str, float], copies: Mapping[str, Sequence[Example]]) -> None:
        self.shares = [(dialect, share) for dialect, share in shares.items() if share and dialect != "sqlite"]
        self.copies = {dialect: {example.uid: example for example in examples} for dialect, examples in copies.items()}

    def __call__(self, example: Example) -> Example:
        """Return the example as it is asked."""
        dialect = self._dialect(example.uid)
        if dialect == "sqlite" or example.engine_url:  # what runs on an engine already has its golds there
            return example
        if dialect not in self.copies:
            return dataclasses.replace(example, dialect=dialect)
        there = self.copies[dialect].get(example.uid)
        if there is None:
            return example
        return dataclasses.replace(there, reasoning=example.reasoning, options=example.options)

    def _dialect(self, uid: str) -> str:
        place = _place(uid)
        for dialect, share in self.shares:
            if place < share:
                return dialect
            place -= share
        return "sqlite"


def placed(examples: Sequence[Example], servers: Mapping[str, str]) -> tuple[Example, ...]:
    """Return examples that know where they run: those of a published set for a server, on that of their dialect.

    `servers[dialect]` is a URL; one that names a database holds all of the set's, as BIRD's mini-dev does in one, and
    else each has one of its name. Raises InputError where a dialect has no server.
    """

    def one(example: Example) -> Example:
        if example.engine_url != UNPLACED:
            return example
        url = servers[example.dialect]
        key = f"executor.databases.{example.dialect}"
        if not is_address(url):
            strange = f", not {url}" if url else ""
            raise InputError(f"{example.uid} runs on {DIALECTS[example.dialect]}: {key} is its server's URL{strange}")
        address = parse_address(url)
        return dataclasses.replace(example, engine_url=address.url(address.database or example.db_id))

    return tuple(map(one, examples))


def refuse_translated(examples: Iterable[Example], sqlite_version: str) -> None:
    """Raise InputError for a question whose answers SQLite runs translated, where it has to be an earlier SQLite.

    The translation calls functions of later versions: a refusal would name what the model never wrote.
    """
    if not sqlite_version:
        return
    if translated := next((each for each in examples if each.dialect == "mysql" and not each.engine_url), None):
        raise InputError(
            f"{translated.uid} asks for MySQL, which is translated for SQLite by functions of later versions than "
            f"executor.sqlite_version={sqlite_version}: leave that empty, or ask the questions of copies on a server"
        )


def taught_sql(example: Example) -> str:
    """Return the SQL to imitate in the example's dialect; as it is where it cannot be translated."""
    sql = example.taught_sql
    if example.dialect == "sqlite" or example.engine_url:
        return sql
    names = {column.name for table in read_schema(example.db_path).tables for column in table.columns}
    return from_sqlite(sql, example.dialect, names) or sql


def shield_answer(response: Response, example: Example, control: ControlTokens) -> Response:
    """Return the answer that an example teaches, with marks in its content: thought, SQL and observations."""
    if isinstance(response, str):
        return _shield_text(response, example, control)
    return [
        (role, _shield_text(text, example, control) if role == "assistant" else control.shield(text, but=TAGS))
        for role, text in response
    ]


def _shield_text(text: str, example: Example, control: ControlTokens) -> str:
    sources = (example.reasoning, example.taught_sql, example.question, example.evidence)
    if all(control.shield(source) == source for source in sources):
        return text
    for source in (example.reasoning, example.taught_sql, taught_sql(example)):
        text = text.replace(source, control.shield(source)) if source else text
    return control.shield(text, but=TAGS)  # where a recipe changes what it places


def _place(uid: str) -> float:
    """Return a number in [0, 1) that looks random and is a function of the id."""
    return zlib.crc32(uid.encode()) / 2**32
