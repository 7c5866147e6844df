"""MySQL's text functions and patterns in terms of SQLite's functions.

Placeholders in the templates: `:s` is the text, `:x` another value or text, `:n` a length or count, `:p` a position (in
`_PAD` the padding), `:d` a delimiter and `:l` a comma-separated list. GLOB is SQLite's match operator: `*` is any text,
`?` a character, `[…]` a class and `[^…]` its negation. A regular expression becomes one or more GLOB patterns.
"""

from __future__ import annotations

import re
from collections.abc import Mapping
from itertools import product

from sqlglot import exp

from jaxrl_sql.text2sql.env.mysql_parts import (
    Refused,
    Rewrite,
    as_text,
    fill,
    from_template,
    name_of,
    text_literal,
    whole_number,
)

# SQLite cannot repeat a text: HEX(ZEROBLOB(:n)) is '00' :n times, in which REPLACE puts the text for each '00'.
_PAD = "SUBSTR(REPLACE(HEX(ZEROBLOB(:n)), '00', :p), 1, :n - LENGTH(:s))"
_PADDED = "CASE WHEN :n < 0 THEN NULL WHEN LENGTH(:s) >= :n THEN SUBSTR(:s, 1, :n) ELSE {} END"
_REPEATED = "CASE WHEN :n IS NOT NULL THEN REPLACE(HEX(ZEROBLOB(MAX(:n, 0))), '00', :s) END"
_REVERSED = (
    "(WITH RECURSIVE _reverse(_from, _text, _left) AS (SELECT :s, '', LENGTH(:s) UNION ALL"
    " SELECT _from, _text || SUBSTR(_from, _left, 1), _left - 1 FROM _reverse WHERE _left > 0)"
    " SELECT _text FROM _reverse WHERE _left = 0)"
)
# The first byte of a text in UTF-8, from its first code point.
_FIRST_BYTE = (
    "CASE WHEN :s = '' THEN 0 WHEN UNICODE(:s) < 128 THEN UNICODE(:s)"
    " WHEN UNICODE(:s) < 2048 THEN 192 + UNICODE(:s) / 64 WHEN UNICODE(:s) < 65536 THEN 224 + UNICODE(:s) / 4096"
    " ELSE 240 + UNICODE(:s) / 262144 END"
)
_HEX = (
    "CASE TYPEOF(:x) WHEN 'null' THEN NULL WHEN 'integer' THEN PRINTF('%X', :x)"
    " WHEN 'real' THEN PRINTF('%X', CAST(ROUND(:x) AS INTEGER)) ELSE HEX(:x) END"
)
# FIND_IN_SET counts the commas before the item, in the list with a comma at its start.
_PLACE_IN_LIST = "SUBSTR(',' || :l, 1, INSTR(',' || :l || ',', ',' || :x || ','))"
_FIND_IN_SET = (
    f"CASE WHEN :l = '' OR INSTR(:x, ',') > 0 THEN 0"
    f" ELSE LENGTH({_PLACE_IN_LIST}) - LENGTH(REPLACE({_PLACE_IN_LIST}, ',', '')) END"
)
# Rows (the text, the position after its delimiter number _n, _n); positions count from 1, and _n = 0 is the start.
_DELIMITERS = (
    "WITH RECURSIVE _part(_text, _start, _n) AS (SELECT :s, 1, 0 UNION ALL"
    " SELECT _text, _start + INSTR(SUBSTR(_text, _start), :d) - 1 + LENGTH(:d), _n + 1 FROM _part"
    " WHERE INSTR(SUBSTR(_text, _start), :d) > 0)"
)
# Limit of the GLOB patterns of a regular expression.
_MAX_GLOBS = 64
# Regular expressions of decimals, such as ^-?[0-9]+(\.[0-9]+)?$. Groups: sign, first class, parenthesis of an optional
# part, separator, second class.
_CLASS = r"(\[[^\[\]\\]+\]|\\d)"
_SIGN, _SEPARATOR = r"(-\?|\\[-+]\?|\[[-+]{2}\]\?)?", r"(\\[^\w\s\[\]]|\[[^\w\s^]\]|[-,/: ])"
_PLAIN_DECIMAL = re.compile(rf"\^{_SIGN}{_CLASS}\+(\((?:\?:)?)?{_SEPARATOR}{_CLASS}\+(?(3)\)\?)\$")
# Classes by name, without upper case: patterns and texts are compared in lower case.
_CLASSES = {"d": "0-9", "w": "a-z0-9_", "s": " \t\n\r"}
_NAMED_CLASSES = {"digit": "0-9", "alpha": "a-z", "alnum": "a-z0-9", "space": " \t\n\r", "upper": "a-z", "lower": "a-z"}


def _rewrite_like(node: exp.Expression) -> exp.Expression | None:
    """Add the backslash as the escape character, MySQL's default, if the pattern may contain one."""
    pattern = node.expression
    if isinstance(pattern, exp.Escape) or isinstance(node.parent, exp.Escape):
        return None
    if isinstance(pattern, exp.Literal) and "\\" not in pattern.name:
        return None
    return exp.Escape(this=node.copy(), expression=exp.Literal.string("\\"))


def _check_escape(node: exp.Expression) -> exp.Expression | None:
    """Refuse LIKE with an escape character that is not a literal of one character, which SQLite requires."""
    character = node.expression
    if not (isinstance(character, exp.Literal) and len(character.name) == 1):
        raise Refused("LIKE with an escape of other than one character")
    return None


def _rewrite_regexp(node: exp.Expression) -> exp.Expression:
    """Write a regular expression as GLOB patterns, in lower case since MySQL's default collation ignores case."""
    pattern = node.expression
    if node.args.get("flag") or not (isinstance(pattern, exp.Literal) and pattern.is_string):
        raise Refused("REGEXP of a pattern that is not written out")
    text = pattern.name.lower()
    repeated_class = re.fullmatch(r"\^(\[[^\[\]\\]+\])([+*])\$", text)
    if repeated_class:
        # All characters are in the class if no character is in its negation.
        inside = repeated_class[1][1:-1]
        negated_class = inside[1:] if inside.startswith("^") else "^" + inside
        not_empty = " AND :s <> ''" if repeated_class[2] == "+" else ""
        glob = f"*[{negated_class}]*".replace("'", "''")
        return fill(f"(LOWER(:s) NOT GLOB '{glob}'{not_empty})", s=node.this)
    decimal = _PLAIN_DECIMAL.fullmatch(text)
    if decimal:
        return _rewrite_decimal_regexp(node.this, text, decimal)
    globs = [re.sub(r"\*+", "*", glob) for glob in globs_of(text)]
    quoted = [glob.replace("'", "''") for glob in dict.fromkeys(globs)]
    return fill("(" + " OR ".join(f"LOWER(:s) GLOB '{glob}'" for glob in quoted) + ")", s=node.this)


def _rewrite_decimal_regexp(value: exp.Expression, pattern: str, match: re.Match[str]) -> exp.Expression:
    """Write `^[…]+(x[…]+)?$`, with an optional sign, where `x` is a separator.

    The text without its sign is split at the first `x`, and both parts are matched with their classes.
    """
    sign, first, _, separator, second = match.groups()
    first, second = (part if part.startswith("[") else "[0-9]" for part in (first, second))
    separator = separator.strip("[]")[-1]
    if re.match(first, separator) or any(re.match(first, character) for character in "+-" if sign):
        raise Refused(f"the regular expression {pattern!r}")
    signs = sign.rstrip("?").strip("[]\\") if sign else ""
    text = f"CASE WHEN :s GLOB '[{signs}]*' THEN SUBSTR(LOWER(:s), 2) ELSE LOWER(:s) END" if signs else "LOWER(:s)"
    conditions = {}
    for name, part in (("first", first), ("second", second)):
        negated_class = part[2:-1] if part.startswith("[^") else "^" + part[1:-1]
        glob = f"*[{negated_class}]*".replace("'", "''")
        conditions[name] = f"({{0}} <> '' AND {{0}} NOT GLOB '{glob}')"
    without_separator = conditions["first"].format(":t") if match[3] is not None else "0"
    before, after = (
        conditions["first"].format("SUBSTR(:t, 1, INSTR(:t, :m) - 1)"),
        conditions["second"].format("SUBSTR(:t, INSTR(:t, :m) + 1)"),
    )
    return fill(
        f"CASE INSTR(:t, :m) WHEN 0 THEN {without_separator} ELSE {before} AND {after} END",
        t=fill(text, s=value),
        m=text_literal(separator),
    )


def globs_of(pattern: str) -> list[str]:
    """Return GLOB patterns that together match the texts of a regular expression; raise Refused if there are none."""
    reader = _RegexpParser(pattern)
    branches = reader.alternatives(is_top=True)
    globs = [("" if starts else "*") + glob + ("" if ends else "*") for starts, glob, ends in branches]
    if reader.at < len(pattern):
        raise Refused(f"the regular expression {pattern!r}")
    return globs


class _RegexpParser:
    """Parse a regular expression into alternatives (anchored at the start, GLOB pattern, anchored at the end).

    `at` is the index of the next character.
    """

    def __init__(self, pattern: str) -> None:
        self.pattern = pattern
        self.at = 0

    def refuse(self) -> Refused:
        return Refused(f"the regular expression {self.pattern!r}")

    def peek(self) -> str:
        return self.pattern[self.at : self.at + 1]

    def take(self) -> str:
        character = self.peek()
        if not character:
            raise self.refuse()
        self.at += 1
        return character

    def alternatives(self, is_top: bool) -> list[tuple[bool, str, bool]]:
        """Read branches separated by `|`; `is_top` is False inside of parentheses."""
        branches = []
        while True:
            branches += self.branch(is_top)
            if len(branches) > _MAX_GLOBS:
                raise self.refuse()
            if self.peek() != "|":
                return branches
            self.at += 1

    def branch(self, is_top: bool) -> list[tuple[bool, str, bool]]:
        """Read a branch; each of its pieces may have several patterns, so all combinations are returned."""
        starts = ends = False
        globs = [""]
        if is_top and self.peek() == "^":
            starts, self.at = True, self.at + 1
        while self.peek() not in {"", "|", ")"}:
            if is_top and self.peek() == "$":
                ends, self.at = True, self.at + 1
                if self.peek() not in {"", "|"}:
                    raise self.refuse()
                break
            piece = self.piece(is_first=globs == [""] and not starts, is_top=is_top)
            globs = [before + after for before, after in product(globs, piece)]
            if len(globs) > _MAX_GLOBS:
                raise self.refuse()
        if globs == [""] and not (starts and ends):
            raise self.refuse()
        return [(starts, glob, ends) for glob in globs]

    def piece(self, is_first: bool, is_top: bool) -> list[str]:
        """Read a character, a class or a group with its quantifier."""
        atoms = self.atom()
        count = re.match(r"\{(\d)(?:(,)(\d?))?\}|[*+?]", self.pattern[self.at :])
        if not count:
            return atoms
        self.at += len(count[0])
        if self.peek() in {"?", "+", "*", "{"}:
            raise self.refuse()  # lazy and possessive forms
        if count[0] == "?":
            return ["", *atoms]
        if count[0] in {"*", "+"} or (count[2] and not count[3]):
            minimum = {"*": 0, "+": 1}.get(count[0], int(count[1] or 0))
            return self.repeat_unbounded(atoms, minimum, is_first and is_top, is_top)
        minimum, maximum = int(count[1]), int(count[3] or count[1])
        return [glob for n in range(minimum, maximum + 1) for glob in self.repeat_exactly(atoms, n)]

    def repeat_exactly(self, atoms: list[str], n: int) -> list[str]:
        if len(atoms) ** n > _MAX_GLOBS:
            raise self.refuse()
        return ["".join(parts) for parts in product(atoms, repeat=n)]

    def repeat_unbounded(self, atoms: list[str], minimum: int, is_first: bool, is_top: bool) -> list[str]:
        """Return at least `minimum` repetitions.

        At an end of the pattern that is not anchored, further repetitions match anyway, so the minimum suffices.
        """
        if atoms == ["?"]:
            return ["?" * minimum + "*"]
        is_last = is_top and self.peek() in {"", "|"}
        if not (is_first or is_last):
            raise self.refuse()
        return self.repeat_exactly(atoms, minimum)

    def atom(self) -> list[str]:
        """Read a character, a class or a group, without its quantifier."""
        character = self.take()
        if character == "(":
            if self.pattern.startswith("?:", self.at):
                self.at += 2
            inner = [glob for _, glob, _ in self.alternatives(is_top=False)]
            if self.take() != ")":
                raise self.refuse()
            return inner
        if character == "[":
            return [self.bracket()]
        if character == ".":
            return ["?"]
        if character == "\\":
            escaped = self.take()
            if escaped in _CLASSES:
                return [f"[{_CLASSES[escaped]}]"]
            if escaped.isalnum():
                raise self.refuse()
            return [_as_literal(escaped)]
        if character in "*+?{}^$)|":
            raise self.refuse()
        return [_as_literal(character)]

    def bracket(self) -> str:
        """Convert a character class to GLOB's form, in which `]` comes first and `-` is between two characters."""
        match = re.match(r"(\^?)((?:\[:[a-z]+:\]|\\.|[^\]\\\[])+)\]", self.pattern[self.at :])
        if not match:
            raise self.refuse()
        self.at += len(match[0])
        inside = ""
        for token in re.findall(r"\[:[a-z]+:\]|\\.|.", match[2], re.DOTALL):
            name = token[2:-2] if token.startswith("[:") else ""
            if name and name not in _NAMED_CLASSES:
                raise self.refuse()
            if token.startswith("\\") and (token[1] in "]^-\\" or (token[1].isalnum() and token[1] not in _CLASSES)):
                raise self.refuse()
            inside += _NAMED_CLASSES[name] if name else _CLASSES.get(token[1], token[1]) if token[0] == "\\" else token
        return f"[{match[1]}{inside}]"


def _as_literal(character: str) -> str:
    """Return the GLOB pattern of a character."""
    return f"[{character}]" if character in "*?[" else character


def _rewrite_substring(node: exp.Expression) -> exp.Expression:
    """Write SUBSTRING; in MySQL, a position of 0 or before the start gives an empty text."""
    text, start, length = node.this, node.args["start"], node.args.get("length")
    n = whole_number(length)
    limit = "" if length is None else ", :n" if n is not None and n >= 0 else ", MAX(:n, 0)"
    substring = f"SUBSTR(:s, :p{limit})"
    position = whole_number(start)
    values = {"s": text, "p": start} | ({} if length is None else {"n": length})
    if position is None or position < 1:
        substring = f"CASE WHEN :p = 0 OR -:p > LENGTH(:s) THEN SUBSTR(:s, 1, 0) ELSE {substring} END"
    return fill(substring, **values)


def _make_substring_rewrite(template: str) -> Rewrite:
    """Return the rewrite of LEFT or RIGHT: a length below 0 counts as 0 in MySQL."""

    def rewrite(node: exp.Expression) -> exp.Expression:
        n = whole_number(node.expression)
        length = ":n" if n is not None and n >= 0 else "MAX(:n, 0)"
        return fill(template.format(length), s=node.this, n=node.expression)

    return rewrite


def _rewrite_pad(node: exp.Expression) -> exp.Expression:
    """Write LPAD and RPAD, which also truncate longer texts."""
    filling = node.args.get("fill_pattern")
    if filling is None or filling.name == "":
        raise Refused("LPAD and RPAD without a text to fill up with")
    padded = f"{_PAD} || :s" if node.args.get("is_left") else f":s || {_PAD}"
    return fill(_PADDED.format(padded), s=node.this, n=node.expression, p=filling)


def _rewrite_trim(node: exp.Expression) -> exp.Expression | None:
    """Allow TRIM of one character only: SQLite trims a set of characters, MySQL a string."""
    trimmed = node.expression
    if trimmed is not None and not (isinstance(trimmed, exp.Literal) and len(trimmed.name) == 1):
        raise Refused("TRIM of more than one character")
    return None


def _rewrite_char(node: exp.Expression) -> exp.Expression | None:
    """Allow CHAR for ASCII only: its other numbers are bytes in MySQL, but code points in SQLite."""
    numbers = [whole_number(number) for number in node.expressions]
    if node.args.get("charset") or any(number is None or not 0 < number < 128 for number in numbers):
        raise Refused("CHAR of other than ASCII characters")
    return None


def _rewrite_length(node: exp.Expression) -> exp.Expression | None:
    """Write MySQL's LENGTH as a count of bytes; CHAR_LENGTH is SQLite's LENGTH."""
    return fill("OCTET_LENGTH(:s)", s=node.this) if node.args.get("binary") else None


def _rewrite_locate(node: exp.Expression) -> exp.Expression:
    """Write LOCATE, INSTR and POSITION; with a start position, the text before it is skipped."""
    values = {"s": node.this, "x": node.args["substr"]}
    position = node.args.get("position")
    if position is None:
        return fill("INSTR(:s, :x)", **values)
    start = whole_number(position)
    if start is None or start < 1:
        raise Refused("LOCATE from a place that is not written out")
    index_in_rest = "INSTR(SUBSTR(:s, :p), :x)"
    return fill(f"CASE WHEN {index_in_rest} = 0 THEN 0 ELSE {index_in_rest} + :p - 1 END", p=position, **values)


def _rewrite_substring_index(node: exp.Expression) -> exp.Expression:
    """Write SUBSTRING_INDEX: the text before the n-th delimiter, or for n < 0 after the n-th from the end."""
    delimiter, n = node.args["delimiter"], whole_number(node.args["count"])
    values = {"s": node.this, "d": delimiter}
    if n is None or n == 0 or not (isinstance(delimiter, exp.Literal) and delimiter.name):
        raise Refused("SUBSTRING_INDEX with a count or a delimiter that is not written out")
    if n == 1:
        return fill("CASE WHEN INSTR(:s, :d) > 0 THEN SUBSTR(:s, 1, INSTR(:s, :d) - 1) ELSE :s END", **values)
    if n == -1 and len(delimiter.name) == 1:
        # Trim all characters other than the delimiter from the end to find the last delimiter.
        return fill("SUBSTR(:s, LENGTH(RTRIM(:s, REPLACE(:s, :d, ''))) + 1)", **values)
    if n > 0:
        result = f"(SELECT SUBSTR(_text, 1, _start - 1 - LENGTH(:d)) FROM _part WHERE _n = {n})"
    else:
        result = (
            f"(SELECT SUBSTR(_text, _start) FROM _part WHERE _n = (SELECT MAX(_n) FROM _part) + {n + 1} AND _n > 0)"
        )
    _refuse_changing_values(node)
    return fill(f"({_DELIMITERS} SELECT COALESCE({result}, _text) FROM _part WHERE _n = 0)", **values)


def _rewrite_reverse(node: exp.Expression) -> exp.Expression:
    _refuse_changing_values(node)
    return fill(_REVERSED, s=node.this)


def _refuse_changing_values(node: exp.Expression) -> None:
    """Refuse a function whose template is a subquery if its argument has another value inside of a subquery.

    These are window functions, and aggregates without a column, which would aggregate the rows of the subquery.
    """
    for part in node.this.walk(prune=lambda part: isinstance(part, exp.Subquery | exp.Select)):
        lacks_column = isinstance(part, exp.AggFunc | exp.GroupConcat) and part.find(exp.Column) is None
        if lacks_column or isinstance(part, exp.Window):
            raise Refused(f"{name_of(node)} of {name_of(part)}")


def _rewrite_elt(node: exp.Expression) -> exp.Expression:
    """Write ELT, which selects an argument by its number."""
    values = {f"x{i}": value for i, value in enumerate(node.expressions, 1)}
    cases = " ".join(f"WHEN {i} THEN :x{i}" for i in range(1, len(values) + 1))
    return fill(f"CASE :n {cases} END", n=node.this, **values)


def _rewrite_concat(node: exp.Expression) -> exp.Expression | None:
    """Convert the arguments of CONCAT and CONCAT_WS to text as MySQL does."""
    texts = [as_text(value) for value in node.expressions]
    if isinstance(node, exp.Concat) and len(texts) == 1:
        return fill("CAST(:x AS TEXT)", x=texts[0])
    node.set("expressions", texts)
    return None


def rewrite_call(name: str, arguments: list[exp.Expression]) -> exp.Expression | None:
    """Rewrite a text function without a class in sqlglot; None for other functions."""
    if name == "MID" and len(arguments) in {2, 3}:
        length = arguments[2].copy() if arguments[2:] else None
        return _rewrite_substring(exp.Substring(this=arguments[0].copy(), start=arguments[1].copy(), length=length))
    if name == "FIELD" and len(arguments) > 1:
        cases = " ".join(f"WHEN :x{i} THEN {i}" for i in range(1, len(arguments)))
        return fill(f"CASE :x0 {cases} ELSE 0 END", **{f"x{i}": value for i, value in enumerate(arguments)})
    if name == "STRCMP" and len(arguments) == 2:
        return fill("CASE WHEN :a < :b THEN -1 ELSE :a > :b END", a=arguments[0], b=arguments[1])
    if name == "FIND_IN_SET" and len(arguments) == 2:
        return fill(_FIND_IN_SET, x=arguments[0], l=arguments[1])
    if name == "OCTET_LENGTH" and len(arguments) == 1:
        return fill("OCTET_LENGTH(:s)", s=arguments[0])
    return None


REWRITES: Mapping[type[exp.Expression], Rewrite] = {
    exp.Like: _rewrite_like,
    exp.Escape: _check_escape,
    exp.RegexpLike: _rewrite_regexp,
    exp.Substring: _rewrite_substring,
    exp.Left: _make_substring_rewrite("SUBSTR(:s, 1, {})"),
    exp.Right: _make_substring_rewrite("SUBSTR(:s, -{0}, {0})"),
    exp.Pad: _rewrite_pad,
    exp.Repeat: from_template(_REPEATED, s="this", n="times"),
    exp.Space: from_template(_REPEATED.replace(":s", "' '"), n="this"),
    exp.Reverse: _rewrite_reverse,
    exp.Ascii: from_template(_FIRST_BYTE, s="this"),
    exp.Hex: from_template(_HEX, x="this"),
    exp.LowerHex: from_template(_HEX, x="this"),
    exp.Trim: _rewrite_trim,
    exp.Chr: _rewrite_char,
    exp.Length: _rewrite_length,
    exp.StrPosition: _rewrite_locate,
    exp.SubstringIndex: _rewrite_substring_index,
    exp.Elt: _rewrite_elt,
    exp.Concat: _rewrite_concat,
    exp.ConcatWs: _rewrite_concat,
    exp.National: lambda node: text_literal(node.name),
}
