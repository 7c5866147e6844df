"""Forms of the grammar on one table: rows, counts, groups, extremes and comparisons with aggregates.

A form builds a question and its query together. In these functions `side` is the table, `names` and `columns` are the
result columns, `clauses` the conditions, `things` the words for the rows, `tail` the query from FROM on, and `k` the
LIMIT. Checks are those of `QuestionCandidate`. The probabilities reproduce Spider's development set (`table.py`). A
form raises NoFit if the database has no suitable part.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence

from jaxrl_sql.datagen.synth.grammar.builder import SORTABLE, Builder, candidate, plural_words, where
from jaxrl_sql.datagen.synth.grammar.comparatives import comparatives_of
from jaxrl_sql.datagen.synth.grammar.phrases import Clause, QueryTable, join_phrases, number_words, verb
from jaxrl_sql.datagen.synth.part_sampler import NoFit, literal, round_value
from jaxrl_sql.datagen.synth.question_template import QuestionCandidate
from jaxrl_sql.datagen.synth.spec import AnnotatedColumn


def ask_rows(builder: Builder) -> QuestionCandidate:
    """Ask for columns of some rows, sorted in a share of the questions."""
    side = builder.choose_table()
    columns = builder.choose_result_columns(side, builder.rng.choices((1, 2, 3), (50, 35, 15))[0])
    clauses = builder.clauses(side, builder.rng.choices((0, 1, 2), (25, 55, 20))[0])
    names = ", ".join(column.name for column in columns)
    query = f"SELECT {names} FROM {side.table.name}{where(clauses)}"
    things = builder.all_of(side, clauses)
    if not builder.chance(0.42):
        label = side.table.label
        if [label] == columns and clauses and side.are_people and builder.chance(0.3):
            return candidate(f"Who are the {things}?", query)
        return candidate(builder.ask(builder.columns_words(columns, side, many=True), things), query)
    key, order, phrase = _choose_order(builder, side)
    check = f"SELECT {key}, {columns[0].name} FROM {side.table.name}{where(clauses)}"
    text = builder.ask(builder.columns_words(columns, side, many=True), things)
    form = builder.choose(("{t}, {w}", "{t} {w}"))
    ending = text[-1]
    return candidate(form.format(t=text[:-1], w=phrase) + ending, query + order, "", check)


def _choose_order(builder: Builder, side: QueryTable) -> tuple[str, str, str]:
    """Choose a sort order; return (sort key, ORDER BY clause, its words)."""
    column = builder.column(side, *SORTABLE, "text")
    if column.kind == "text":
        phrase = builder.choose(("in alphabetical order of {}", "sorted alphabetically by {}")).format(
            builder.noun_of(column)
        )
        return column.name, f" ORDER BY {column.name}", phrase
    is_highest = builder.chance(0.55)
    comparatives = comparatives_of(column, side.are_people)
    ends = (comparatives.most, comparatives.least) if is_highest else (comparatives.least, comparatives.most)
    if comparatives.most and builder.chance(0.5):
        phrase = builder.choose(("from the {} to the {}", "ordered from {} to {}")).format(*ends)
    else:
        way = "descending" if is_highest else "ascending"
        forms = ("sorted by {c} in {w} order", "ordered by {c} {w}", "in {w} order of {c}", "sorted by {w} {c}")
        noun = builder.noun_of(column)
        phrase = builder.choose(forms).format(c=f"the {noun}" if noun.startswith("number") else noun, w=way)
    return column.name, f" ORDER BY {column.name} {'DESC' if is_highest else 'ASC'}", phrase


def ask_count(builder: Builder) -> QuestionCandidate:
    """Ask for the number of some rows."""
    side = builder.choose_table()
    clauses = builder.clauses(side, builder.rng.choices((0, 1, 2), (15, 60, 25))[0])
    text = builder.ask_number(builder.things(side, clauses))
    return candidate(text, f"SELECT COUNT(*) FROM {side.table.name}{where(clauses)}")


def ask_either_value(builder: Builder) -> QuestionCandidate:
    """Ask for rows with either of two values of a category."""
    side = builder.choose_table("category")
    column = builder.column(side, "category")
    value = builder.value(column)
    other = builder.value(column, value)
    values = f"{builder.value_words(value)} or {builder.value_words(other)}"
    things = f"{builder.noun(side)} whose {builder.noun_of(column)} is {builder.choose(('', 'either '))}{values}"
    test = f" WHERE {column.name} = {literal(value)} OR {column.name} = {literal(other)}"
    if builder.chance(0.5):
        return candidate(builder.ask_number(things), f"SELECT COUNT(*) FROM {side.table.name}{test}")
    columns = builder.choose_result_columns(side, builder.k(1, 2))
    names = ", ".join(column.name for column in columns)
    text = builder.ask(builder.columns_words(columns, side, many=True), things)
    return candidate(text, f"SELECT {names} FROM {side.table.name}{test}")


def ask_aggregates(builder: Builder) -> QuestionCandidate:
    """Ask for one to three aggregates of a column."""
    side = builder.choose_table_with_quantity()
    column = builder.measure(side)
    count = builder.rng.choices((1, 2, 3), (55, 30, 15))[0]
    functions = builder.rng.sample(("AVG", "MAX", "MIN"), count) if count > 1 else ()
    if functions:
        name = builder.amount(column)
        adjectives = {"AVG": "average", "MAX": "maximum", "MIN": "minimum"}
        phrase = f"{join_phrases([adjectives[function] for function in functions])} {name}"
        names = ", ".join(f"{function}({column.name})" for function in functions)
    else:
        names, phrase = builder.aggregate_of(side, column)
    clauses = builder.clauses(side, builder.rng.choices((0, 1, 2), (40, 45, 15))[0])
    things = builder.all_of(side, clauses)
    question = "What are the {w} of {t}?" if functions else "What is the {w} of {t}?"
    commands = ("Find the {w} of {t}.", "Give the {w} of {t}.", "Return the {w} across {t}.", "Show the {w} of {t}.")
    text = builder.choose((question, question, *commands)).format(w=phrase, t=things)
    return candidate(text, f"SELECT {names} FROM {side.table.name}{where(clauses)}")


def ask_distinct_values(builder: Builder) -> QuestionCandidate:
    """Ask for the distinct values of a column, or their number."""
    side = builder.choose_table()
    column = builder.choose_category(side)
    clauses = builder.clauses(side, builder.rng.choices((0, 1), (55, 45))[0])
    tail = f" FROM {side.table.name}{where(clauses)}"
    things = builder.all_of(side, clauses)
    noun = builder.noun_of(column)
    many = plural_words(noun)
    phrase = f"{builder.choose(('different', 'distinct'))} {f'kinds of {noun}' if noun == many else many}"
    if builder.chance(0.45):
        text = builder.choose(
            ("How many {w} do {t} have?", "Count the number of {w} of {t}.", "How many {w} are there among {t}?")
        )
        return candidate(text.format(w=phrase, t=things), f"SELECT COUNT(DISTINCT {column.name}){tail}")
    text = builder.choose(("What are the {w} of {t}?", "List the {w} of {t}.", "Show all the {w} of {t}."))
    return candidate(text.format(w=phrase, t=things), f"SELECT DISTINCT {column.name}{tail}")


def ask_labelled_row(builder: Builder) -> QuestionCandidate:
    """Ask for columns of the row with a label."""
    side = builder.choose_table(label=True)
    clause = builder.label_condition(side)
    side.used.append(side.table.columns[0])
    columns = [builder.choose_result_columns(side)[0] for _ in range(builder.rng.choices((1, 2), (70, 30))[0])]
    names = ", ".join(column.name for column in columns)
    text = builder.ask(builder.columns_words(columns, side, many=False), clause.after, many=False)
    if len(columns) > 1:
        text = text.replace("What is", "What are")
    return candidate(text, f"SELECT {names} FROM {side.table.name} WHERE {clause.sql}")


def ask_extreme_row(builder: Builder) -> QuestionCandidate:
    """Ask for columns of the row with the highest or lowest value of a column, or of the top few."""
    side = builder.choose_table(*SORTABLE)
    column = builder.column(side, *SORTABLE)
    is_highest = builder.chance(0.6)
    clause = builder.extreme(side, column, is_highest)
    clauses = builder.clauses(side, builder.rng.choices((0, 1), (65, 35))[0])
    columns = builder.choose_result_columns(side, builder.rng.choices((1, 2, 3), (55, 35, 10))[0])
    k = 1 if builder.chance(0.75) else builder.k(2, 6)
    names = ", ".join(column.name for column in columns)
    tail = f"FROM {side.table.name}{where(clauses)} ORDER BY {column.name} {clause.sql} LIMIT"
    if clause.before and any(other.before for other in clauses):
        raise NoFit
    phrase = builder.columns_words(columns, side, many=k > 1)
    text = _of_extreme(builder, side, [clause, *clauses], phrase, k, is_label=columns == [side.table.label])
    return candidate(text, f"SELECT {names} {tail} {k}", f"SELECT {column.name} {tail} {k + 1}")


def _of_extreme(
    builder: Builder, side: QueryTable, clauses: Sequence[Clause], phrase: str, k: int, *, is_label: bool
) -> str:
    """Phrase a request for columns (`phrase`) of the `k` rows of an extreme, the first of the clauses."""
    best, *rest = clauses
    if k > 1:
        things = builder.things(side, [Clause("", f"{k} {best.before}".strip(), best.after), *rest])
        return builder.ask(phrase, f"the {things}")
    thing = builder.things(side, [best, *rest], many=False)
    if is_label and builder.chance(0.35):
        if side.are_people:
            return f"Who is the {thing}?"
        if best.before and not rest:
            return f"Which {side.table.singular} is the {best.before}?"
    if rest and builder.chance(0.4):
        among = builder.things(side, rest)
        this = builder.things(QueryTable(side.table), [best], many=False)
        return f"Among {among}, what {'are' if ' and ' in phrase else 'is'} the {phrase} of the {this}?"
    text = builder.ask(phrase, f"the {thing}", many=False)
    return text.replace("What is", "What are") if " and " in phrase else text


def ask_per_group(builder: Builder) -> QuestionCandidate:
    """Ask for a number or aggregates of each group of rows, with HAVING or ORDER BY in a share of the questions."""
    side = builder.choose_table("category")
    category = builder.choose_category(side)
    parts, phrases = [category.name], []
    if builder.chance(0.6):
        parts.append("COUNT(*)")
        phrases.append(f"number of {builder.noun(side)}")
    if not phrases or builder.chance(0.2):
        sql, phrase = builder.aggregate_of(side, builder.measure(side))
        parts.append(sql)
        phrases.append(f"{phrase} of {builder.noun(side)}" if not phrases else phrase)
    clauses = builder.clauses(side, builder.rng.choices((0, 1), (80, 20))[0])
    query = f"SELECT {', '.join(parts)} FROM {side.table.name}{where(clauses)} GROUP BY {category.name}"
    of = f" {' and '.join(clause.after for clause in clauses)}" if clauses else ""
    if any(clause.before for clause in clauses):
        raise NoFit
    group_noun = builder.noun_of(category)
    forms: tuple[str, ...] = (
        "What is the {w}{o} for each {g}?",
        "For each {g}, show the {w}{o}.",
        "Show each {g} and the {w}{o}.",
        "List every {g} with the {w}{o}.",
    )
    if not clauses:
        forms += ("What are the different {gs} and the {w} for each?",)
    if phrases[0].startswith("number of") and len(phrases) == 1:
        things = phrases[0].removeprefix("number of ")
        forms += (f"How many {things}{{o}} are there for each {{g}}?", f"Count the {things}{{o}} of each {{g}}.")
    text = builder.choose(forms).format(w=join_phrases(phrases), o=of, g=group_noun, gs=plural_words(group_noun))
    return _sort_groups(builder, text, query, parts)


def _sort_groups(builder: Builder, text: str, query: str, parts: Sequence[str]) -> QuestionCandidate:
    """Sort the groups by their aggregate in a share of the questions; `parts` are the result columns of the query."""
    if not builder.chance(0.12):
        return candidate(text, query)
    way, direction = builder.choose((("DESC", "descending"), ("ASC", "ascending")))
    noun = "number" if parts[1] == "COUNT(*)" else "value"
    check = query.replace(f"SELECT {parts[0]}, ", f"SELECT {parts[1]}, {parts[0]}, ", 1)
    sorted_text = f"{text[:-1]}, sorted by this {noun} in {direction} order{text[-1]}"
    return candidate(sorted_text, f"{query} ORDER BY {parts[1]} {way}", "", check)


def ask_groups_having(builder: Builder) -> QuestionCandidate:
    """Ask for the groups with enough rows, or with a high or low aggregate."""
    side = builder.choose_table()
    category = builder.choose_category(side)
    if builder.chance(0.3):
        return _ask_groups_by_average(builder, side, category)
    sizes = sorted(Counter(category.values).values())
    k = sizes[int((len(sizes) - 1) * builder.rng.uniform(0.3, 0.9))]
    number_word = number_words(k)
    sign, comparison = builder.choose(
        ((">=", f"at least {number_word}"), (">", f"more than {number_word}"), ("<", f"fewer than {k}"))
    )
    query = f"SELECT {category.name} FROM {side.table.name} GROUP BY {category.name} HAVING COUNT(*) {sign} {k}"
    forms = (
        "Which {gs} have {w} {t}?",
        "What are the {gs} with {w} {t}?",
        "Find the {gs} that are shared by {w} {t}.",
        "List the {gs} that {w} {t} {h}.",
    )
    noun, have = builder.noun(side, many=k != 1), "have" if k != 1 else "has"
    groups = builder.noun_of(category, many=True)
    return candidate(builder.choose(forms).format(gs=groups, w=comparison, t=noun, h=have), query)


def _ask_groups_by_average(builder: Builder, side: QueryTable, category: AnnotatedColumn) -> QuestionCandidate:
    """Ask for the groups whose aggregate of a column is above or below a value."""
    column = builder.measure(side)
    middle = round_value(column, builder.quantile(column, 0.35, 0.65), is_up=True)
    sign, comparison = builder.choose(((">", "above"), (">", "higher than"), ("<", "below")))
    function, adjective = builder.choose((("AVG", "average"), ("AVG", "mean"), ("MAX", "highest"), ("MIN", "lowest")))
    text = builder.choose(
        (
            "Which {gs} have {f} {c} {w} {v} among {t}?",
            "Find the {gs} for which the {s} {c} of {t} is {w} {v}.",
            "List the {gs} for which the {s} {c} of {t} is {w} {v}.",
        )
    ).format(
        gs=builder.noun_of(category, many=True), f=("an " if adjective == "average" else "a ") + adjective, s=adjective,
        c=builder.amount(column), w=comparison, v=middle, t=builder.noun(side),
    )  # fmt: skip
    query = f"SELECT {category.name} FROM {side.table.name} GROUP BY {category.name}"
    return candidate(text, f"{query} HAVING {function}({column.name}) {sign} {middle}")


def ask_most_common(builder: Builder) -> QuestionCandidate:
    """Ask for the most or least frequent value of a column."""
    side = builder.choose_table()
    category = builder.choose_category(side)
    way, rank = builder.choose((("DESC", "most"), ("DESC", "most"), ("ASC", "least")))
    clauses = builder.clauses(side, builder.rng.choices((0, 1), (75, 25))[0])
    tail = f"FROM {side.table.name}{where(clauses)} GROUP BY {category.name} ORDER BY COUNT(*) {way} LIMIT"
    things = builder.things(side, clauses)
    if builder.chance(0.3):
        k = 1 if builder.chance(0.4) else builder.k(2, 4)
        groups = builder.noun_of(category, many=k > 1)
        groups = f"the {rank} common {groups}" if k == 1 else f"the {k} {rank} common {groups}"
        text = f"What {'is' if k == 1 else 'are'} {groups} of {things}, and how many have {'it' if k == 1 else 'each'}?"
        return candidate(text, f"SELECT {category.name}, COUNT(*) {tail} {k}", f"SELECT COUNT(*) {tail} {k + 1}")
    forms = (
        "What is the {m} common {g} of {t}?",
        "Which {g} do the {M} {t} have?",
        "Find the {g} that the {M} {t} have.",
        "Show the {m} common {g} among {t}.",
    )
    most = "most" if rank == "most" else "fewest"
    text = builder.choose(forms).format(m=rank, M=most, g=builder.noun_of(category), t=things)
    return candidate(text, f"SELECT {category.name} {tail} 1", f"SELECT COUNT(*) {tail} 2")


def ask_against_average(builder: Builder) -> QuestionCandidate:
    """Ask for rows above or below the average of all rows, or an aggregate of some rows."""
    side = builder.choose_table_with_quantity()
    column = builder.measure(side)
    sign, comparison = builder.choose(((">", "above"), (">", "higher than"), ("<", "below"), ("<", "lower than")))
    function = "AVG"
    inner: list[Clause] = []
    than = "average"
    if builder.chance(0.4):
        inner = builder.clauses(side, 1)
        function = builder.choose(("MIN", "MAX") if builder.chance(0.6) else ("AVG",))
        than = {"MIN": "lowest", "MAX": "highest", "AVG": "average"}[function]
    noun = builder.amount(column)
    phrase = f"{comparison} the {than}" + (f" {noun} of {builder.things(side, inner)}" if inner else "")
    is_plain = verb(noun) == "are" or noun.startswith("number of")
    phrase = (
        f"with a {noun} {phrase}" if builder.chance(0.5) and not is_plain else f"whose {noun} {verb(noun)} {phrase}"
    )
    table = side.table.name
    query = f"FROM {table} WHERE {column.name} {sign} (SELECT {function}({column.name}) FROM {table}{where(inner)})"
    things = builder.things(side, extra=phrase)
    if builder.chance(0.4):
        return candidate(builder.ask_number(things), f"SELECT COUNT(*) {query}")
    columns = builder.choose_result_columns(side, builder.rng.choices((1, 2), (70, 30))[0])
    text = builder.ask(builder.columns_words(columns, side, many=True), things)
    return candidate(text, f"SELECT {', '.join(column.name for column in columns)} {query}")


def ask_shared_values(builder: Builder) -> QuestionCandidate:
    """Ask for values of a column that two kinds of rows share, that only the first has, or that either has."""
    side = builder.choose_table()
    category = builder.choose_category(side)
    first, second = builder.clauses(side, 1)[0], builder.clauses(side, 1)[0]
    operator = builder.choose(("INTERSECT", "EXCEPT", "UNION"))
    here, there = builder.things(side, [first]), builder.things(side, [second])
    forms = {
        "INTERSECT": ("Which {gs} have both {a} and {b}?", "What are the {gs} shared by {a} and {b}?"),
        "EXCEPT": ("Which {gs} have {a} but no {b}?", "Find the {gs} of {a} that no {b} have."),
        "UNION": ("What are the {gs} of {a} or of {b}, each once?", "List all different {gs} of {a} and of {b}."),
    }
    select = f"SELECT {category.name} FROM {side.table.name}"
    text = builder.choose(forms[operator]).format(gs=builder.noun_of(category, many=True), a=here, b=there)
    return candidate(text, f"{select} WHERE {first.sql} {operator} {select} WHERE {second.sql}")


def ask_containing(builder: Builder) -> QuestionCandidate:
    """Ask for rows whose text contains a word, or begins with a letter."""
    side = builder.choose_table("text")
    column = builder.column(side, "text")
    text = str(builder.value(column))
    if builder.chance(0.35) and text[:1].isalpha():
        pattern, phrase = f"{text[0]}%", builder.choose(("starts with", "begins with")) + f" {text[0]}"
    else:
        word = builder.choose([word for word in text.split() if word.isalpha() and len(word) > 2])
        pattern, phrase = f"%{word}%", builder.choose(("contains", "includes the word")) + f" {word}"
    things = f"{builder.noun(side)} whose {builder.noun_of(column)} {phrase}"
    tail = f"FROM {side.table.name} WHERE {column.name} LIKE '{pattern}'"
    if builder.chance(0.35):
        return candidate(builder.ask_number(things), f"SELECT COUNT(*) {tail}")
    columns = builder.choose_result_columns(QueryTable(side.table), builder.k(1, 2))
    question = builder.ask(builder.columns_words(columns, side, many=True), things)
    return candidate(question, f"SELECT {', '.join(column.name for column in columns)} {tail}")
