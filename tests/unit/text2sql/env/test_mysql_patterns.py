"""GLOB patterns of regular expressions match the same texts as Python's `re`."""

import re
import sqlite3
from contextlib import closing

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from jaxrl_sql.text2sql.env.mysql_parts import Refused
from jaxrl_sql.text2sql.env.mysql_text import globs_of

PIECES = r"a b 1 \. [ab] [^a] [0-9] (a|b) (ab|1) a? a* b+ . .* .+ a{2} [ab]{1,2} (a|b){2} \d \w \[ \* \? - _".split()
BRANCHES = st.tuples(st.booleans(), st.lists(st.sampled_from(PIECES), min_size=1, max_size=4), st.booleans())


@given(
    st.lists(BRANCHES, min_size=1, max_size=2), st.lists(st.text("ab1 .-_[]*?^", max_size=6), min_size=5, max_size=5)
)
@settings(max_examples=300, deadline=None)
def test_globs_match_the_same_texts_as_the_regular_expression(
    branches: list[tuple[bool, list[str], bool]], texts: list[str]
) -> None:
    pattern = "|".join("^" * starts + "".join(pieces) + "$" * ends for starts, pieces, ends in branches)
    try:
        globs = globs_of(pattern)
    except Refused:
        return
    expected = [bool(re.search(pattern.replace("$", r"\Z"), text, re.DOTALL)) for text in texts]
    with closing(sqlite3.connect(":memory:")) as connection:
        query = f"SELECT {' OR '.join('?1 GLOB ?' for _ in globs)}"
        assert [connection.execute(query, (text, *globs)).fetchone()[0] for text in texts] == expected, globs


@pytest.mark.parametrize(
    "pattern",
    ["", "(", "a)", "[a", "*a", "a**", "a+?", r"\bword", r"(a)\1", "^[a-z]+[0-9]+$", "(a|b){9}", "(?=a)", "a^b", "a$b"],
)
def test_regular_expression_without_globs_is_refused(pattern: str) -> None:
    with pytest.raises(Refused, match="regular expression"):
        globs_of(pattern)
