"""Forms of the grammar on several tables: rows at both ends of a foreign key, groups of children, chains.

A child is a row with a foreign key, its parent the row that it references, and a grandparent the parent's parent.
In these functions `both` are the joined tables, `columns` and `names` the result columns, and `clauses` the conditions.
`things` are the words for the rows, `kids` those for children, and `phrase` those for the result columns. `tail` is the
query from FROM on, `best` a sort order with words such as `the highest age`, and `owner` a condition on the parent.
`QueryTable.take` marks a column as used, so that no condition uses it, and returns it.

`candidate(text, query, order_check, sort_check)` returns the question. The checks are queries that find ambiguous
golds: `order_check` for equal sort keys at a LIMIT, `sort_check` for equal sort keys of a sorted list.
"""

from __future__ import annotations

from collections import Counter

from jaxrl_sql.datagen.synth.grammar.builder import SORTABLE, Builder, JoinedTables, candidate, where
from jaxrl_sql.datagen.synth.grammar.comparatives import is_adjectival
from jaxrl_sql.datagen.synth.grammar.phrases import Clause, QueryTable, join_phrases, number_words
from jaxrl_sql.datagen.synth.part_sampler import MEASURE, NoFit, literal
from jaxrl_sql.datagen.synth.question_template import QuestionCandidate
from jaxrl_sql.datagen.synth.spec import AnnotatedTable, Reference


def _choose_owner(builder: Builder, both: JoinedTables) -> Clause:
    """Return a condition on the parent, with words that follow the children (`working in the Sales department`)."""
    owner = _choose_condition(builder, both.parent)
    return Clause(owner.sql, after=f"{both.relation.of_child} {owner.after}")


def _choose_condition(builder: Builder, side: QueryTable) -> Clause:
    """Return a condition on rows; its words name these rows, a single one by its label or several."""
    if side.table.label is not None and builder.chance(0.5):
        return builder.label_condition(side)
    clause = builder.clause(side)
    return Clause(clause.sql, after=builder.things(side, [clause]))


def ask_children(builder: Builder) -> QuestionCandidate:
    """Ask for columns, the number or an aggregate of the children of some parents."""
    both = builder.join()
    owner = _choose_owner(builder, both)
    clauses = builder.clauses(both.child, builder.rng.choices((0, 1), (70, 30))[0])
    things = builder.things(both.child, clauses, extra=owner.after)
    tail = f"FROM {both.sql}{where([owner, *clauses])}"
    kind = builder.rng.choices(("rows", "number", "aggregate"), (55, 30, 15))[0]
    if kind == "number":
        return candidate(builder.ask_number(things), f"SELECT COUNT(*) {tail}")
    if kind == "aggregate":
        sql, phrase = builder.aggregate_of(both.child, builder.measure(both.child))
        return candidate(builder.ask(phrase, things, many=False), f"SELECT {sql} {tail}")
    columns = builder.choose_result_columns(both.child, builder.rng.choices((1, 2), (65, 35))[0])
    names = ", ".join(both.child.name(column) for column in columns)
    return candidate(
        builder.ask(builder.columns_words(columns, both.child, many=True), things), f"SELECT {names} {tail}"
    )


def ask_children_and_parents(builder: Builder) -> QuestionCandidate:
    """Ask for columns of children and of their parents, sorted in a share of the questions."""
    both = builder.join()
    child_columns, parent_columns = (
        builder.choose_result_columns(both.child, 1 if builder.chance(0.8) else 2),
        builder.choose_result_columns(both.parent),
    )
    clauses = builder.clauses(both.child, builder.rng.choices((0, 1, 2), (40, 45, 15))[0])
    names = ", ".join([*map(both.child.name, child_columns), *map(both.parent.name, parent_columns)])
    things = (
        builder.things(both.child, clauses)
        if clauses
        else f"{builder.choose(('all', 'the'))} {builder.noun(both.child)}"
    )
    child_phrase, parent_phrase = (
        builder.columns_words(child_columns, both.child, many=True),
        builder.columns_words(parent_columns, both.parent, many=True),
    )
    parent = both.parent.table.plural
    forms = (
        "What are the {w} of {t} and the {p} of their {s}?",
        "For {t}, show the {w} and the {p} of the {s}.",
        "Show the {w} of {t} together with the {p} of their {s}.",
        "Show the {w} of {t} and the {p} of the {s} that they belong to.",
        "List the {w} of {t} and the {p} of the {s}.",
    )
    text = builder.choose(forms).format(w=child_phrase, t=things, p=parent_phrase, s=parent)
    query = f"SELECT {names} FROM {both.sql}{where(clauses)}"
    if not builder.chance(0.22):
        return candidate(text, query)
    column = builder.column(both.child, *SORTABLE)
    way, direction = builder.choose((("DESC", "descending"), ("ASC", "ascending")))
    key = both.child.name(column)
    check = query.replace("SELECT ", f"SELECT {key}, ", 1)
    text = f"{text[:-1]}, in {direction} order of {builder.noun_of(column)}{text[-1]}"
    return candidate(text, f"{query} ORDER BY {key} {way}", sort_check=check)


def ask_parents_with_children(builder: Builder) -> QuestionCandidate:
    """Ask for the distinct parents of some children, by DISTINCT over a join or by IN, or for parents without them."""
    both = builder.join(label=True)
    columns = builder.choose_result_columns(both.parent, builder.rng.choices((1, 2), (75, 25))[0])
    clauses = builder.clauses(both.child, 1)
    kids = builder.things(QueryTable(both.child.table), clauses)
    things = builder.things(both.parent, extra=f"{both.relation.of_parent} {kids}")
    phrase = builder.columns_words(columns, both.parent, many=True)
    if builder.chance(0.45):
        names = ", ".join(column.name for column in columns)
        test = clauses[0].sql.removeprefix(both.child.prefix)
        is_in = builder.chance(0.55)
        if not is_in:
            if " != " in test:  # a double negation
                raise NoFit
            things = builder.things(both.parent, extra=_without(both, kids))
        query = (
            f"SELECT {names} FROM {both.parent.table.name} WHERE {both.reference.target} {'' if is_in else 'NOT '}IN "
            f"(SELECT {both.reference.column.name} FROM {both.child.table.name} WHERE {test})"
        )
        return candidate(builder.ask(phrase, things), query)
    names = ", ".join(both.parent.name(column) for column in columns)
    adjective = builder.choose(("different ", "distinct ", ""))
    return candidate(
        builder.ask(f"{adjective}{phrase}", things), f"SELECT DISTINCT {names} FROM {both.sql}{where(clauses)}"
    )


def _without(both: JoinedTables, kids: str) -> str:
    """Return words for parents without such children."""
    return f"{'who' if both.parent.are_people else 'that'} do not have any {kids}"


def ask_parents_without_children(builder: Builder) -> QuestionCandidate:
    """Ask for the parents that have no children, or their number."""
    child, parent, reference = builder.link()
    word = "who" if parent.are_people else "that"
    forms = ("without any {}", f"{word} do not have any {{}}", f"{word} have no {{}}")
    things = builder.things(parent, extra=builder.choose(forms).format(builder.noun(child)))
    inner = f"SELECT {reference.column.name} FROM {child.table.name}"
    tail = f"FROM {parent.table.name} WHERE {reference.target} NOT IN ({inner})"
    if builder.chance(0.35):
        return candidate(builder.ask_number(things), f"SELECT COUNT(*) {tail}")
    columns = builder.choose_result_columns(parent, builder.rng.choices((1, 2), (75, 25))[0])
    names = ", ".join(column.name for column in columns)
    return candidate(builder.ask(builder.columns_words(columns, parent, many=True), things), f"SELECT {names} {tail}")


def ask_per_parent(builder: Builder) -> QuestionCandidate:
    """Ask for a number or an aggregate of the children of each parent."""
    both = builder.join(label=True)
    columns = [both.parent.take(both.parent.table.columns[0])]
    if builder.chance(0.25):
        columns += builder.choose_result_columns(both.parent)
    clauses = builder.clauses(both.child, builder.rng.choices((0, 1), (80, 20))[0])
    names = ", ".join(both.parent.name(column) for column in columns)
    phrase, kids, parent = (
        ", ".join(builder.noun_of(column, both.parent) for column in columns),
        builder.things(both.child, clauses),
        both.parent.table.singular,
    )
    if builder.chance(0.65):
        sql, amount = "COUNT(*)", f"number of {kids}"
        forms: tuple[str, ...] = (
            "For each {p}, show the {c} and the {n}.",
            "How many {k} does each {p} have? Show {a} too.",
            "What is the {n} of each {p}? Give {a} as well.",
            "List the {c} of each {p} and the {n}.",
            "Count the {k} of each {p}, and show {a} first.",
        )
    else:
        sql, amount = builder.aggregate_of(both.child, builder.measure(both.child))
        amount = f"{amount} of its {kids}" if not both.parent.are_people else f"{amount} of their {kids}"
        forms = ("For each {p}, show the {c} and the {n}.", "List the {c} of each {p} and the {n}.")
    text = builder.choose(forms).format(
        p=parent, c=phrase, a=f"the {join_phrases(phrase.split(', '))}", n=amount, k=kids
    )
    tail = f"FROM {both.sql}{where(clauses)} GROUP BY {both.parent_id}"
    query = f"SELECT {names}, {sql} {tail}"
    if builder.chance(0.12):
        way, order = builder.choose((("DESC", "descending"), ("ASC", "ascending")))
        check = f"SELECT {sql}, {names} {tail}"
        if "?" not in text:
            text = f"{text[:-1]}, in {order} order of the {'number' if sql == 'COUNT(*)' else 'latter'}."
            return candidate(text, f"{query} ORDER BY {sql} {way}", sort_check=check)
    return candidate(text, query)


def ask_per_parent_category(builder: Builder) -> QuestionCandidate:
    """Ask for a number or an aggregate of the children by a category of their parents."""
    both = builder.join()
    category = builder.choose_category(both.parent)
    clauses = builder.clauses(both.child, builder.rng.choices((0, 1), (75, 25))[0])
    kids, group_noun = builder.things(both.child, clauses), builder.noun_of(category, both.parent)
    if builder.chance(0.6):
        sql, amount = "COUNT(*)", f"number of {kids}"
    else:
        sql, amount = builder.aggregate_of(both.child, builder.measure(both.child))
        amount = f"{amount} of {kids}"
    name, parent = both.parent.name(category), both.parent.table.singular
    forms = (
        "For each {g} of the {p}, show the {n}.",
        "What is the {n} for each {g} of the {ps}?",
        "Show each {g} of the {ps} and the {n}.",
    )
    text = builder.choose(forms).format(p=parent, ps=both.parent.table.plural, g=group_noun, n=amount)
    return candidate(text, f"SELECT {name}, {sql} FROM {both.sql}{where(clauses)} GROUP BY {name}")


def ask_parents_having(builder: Builder) -> QuestionCandidate:
    """Ask for the parents with enough children."""
    both = builder.join(label=True)
    columns = [both.parent.take(both.parent.table.columns[0])]
    if builder.chance(0.3):
        columns += builder.choose_result_columns(both.parent)
    counts = sorted(Counter(both.reference.column.values).values())
    if len(counts) < 4:
        raise NoFit
    k = counts[int((len(counts) - 1) * builder.rng.uniform(0.4, 0.95))]
    number_word = number_words(k)
    sign, amount = builder.choose(
        (
            (">=", f"at least {number_word}"),
            (">", f"more than {number_word}"),
            ("=", f"exactly {number_word}"),
            (">=", f"{k} or more"),
        )
    )
    relation = both.relation.of_parent
    clauses = builder.clauses(both.child, builder.rng.choices((0, 1), (85, 15))[0])
    kids = builder.things(both.child, clauses, many=k != 1 or amount.endswith("or more"))
    things = builder.things(both.parent, extra=f"{relation} {amount} {kids}")
    names = ", ".join(both.parent.name(column) for column in columns)
    text = builder.ask(builder.columns_words(columns, both.parent, many=True), things)
    return candidate(
        text, f"SELECT {names} FROM {both.sql}{where(clauses)} GROUP BY {both.parent_id} HAVING COUNT(*) {sign} {k}"
    )


def ask_parent_with_most_children(builder: Builder) -> QuestionCandidate:
    """Ask for the parent with the most or fewest children, or the largest aggregate over them."""
    both = builder.join(label=True)
    columns = [both.parent.take(both.parent.table.columns[0])]
    if builder.chance(0.3):
        columns += builder.choose_result_columns(both.parent)
    names = ", ".join(both.parent.name(column) for column in columns)
    clauses = builder.clauses(both.child, builder.rng.choices((0, 1), (75, 25))[0])
    kids = builder.things(both.child, clauses)
    if builder.chance(0.7):
        way, extreme, key = builder.choose(
            (("DESC", f"the most {kids}", "COUNT(*)"), ("ASC", f"the fewest {kids}", "COUNT(*)"))
        )
    else:
        key, phrase = builder.aggregate_of(both.child, builder.measure(both.child), ("SUM", "AVG"))
        way, extreme = "DESC", f"the highest {phrase} of {kids}"
    k = 1 if builder.chance(0.85) else builder.k(2, 4)
    tail = f"FROM {both.sql}{where(clauses)} GROUP BY {both.parent_id} ORDER BY {key} {way} LIMIT"
    phrase, single = builder.columns_words(columns, both.parent, many=k > 1), both.parent.table.singular
    if k == 1 and len(columns) == 1 and builder.chance(0.4):
        text = f"Which {single} has {extreme}?"
    elif k == 1:
        text = builder.ask(phrase, f"the {single} with {extreme}", many=False)
    else:
        text = builder.ask(phrase, f"the {k} {both.parent.table.plural} with {extreme}")
    return candidate(text, f"SELECT {names} {tail} {k}", f"SELECT {key} {tail} {k + 1}")


def ask_children_of_extreme_parent(builder: Builder) -> QuestionCandidate:
    """Ask for children of the parent with the highest or lowest value of a column, by a nested query."""
    child, parent, reference = builder.link()
    column = builder.column(parent, *SORTABLE)
    if column.has_nulls:
        raise NoFit
    best = builder.extreme(parent, column, builder.chance(0.6))
    owner = f"{reference.relation.of_child} the {builder.things(parent, [best], many=False)}"
    things = builder.things(child, extra=owner)
    inner = f"FROM {parent.table.name} ORDER BY {column.name} {best.sql} LIMIT"
    tail = f"FROM {child.table.name} WHERE {reference.column.name} = (SELECT {reference.target} {inner} 1)"
    check = f"SELECT {column.name} {inner} 2"
    if builder.chance(0.4):
        return candidate(builder.ask_number(things), f"SELECT COUNT(*) {tail}", check)
    columns = builder.choose_result_columns(child, builder.rng.choices((1, 2), (65, 35))[0])
    names = ", ".join(column.name for column in columns)
    return candidate(
        builder.ask(builder.columns_words(columns, child, many=True), things), f"SELECT {names} {tail}", check
    )


def ask_parent_of_extreme_child(builder: Builder) -> QuestionCandidate:
    """Ask for columns of the parent of the child with the highest or lowest value of a column."""
    both = builder.join()
    column = builder.column(both.child, *SORTABLE)
    best = builder.extreme(both.child, column, builder.chance(0.6))
    columns = builder.choose_result_columns(both.parent, builder.rng.choices((1, 2), (70, 30))[0])
    names = ", ".join(both.parent.name(column) for column in columns)
    child = builder.things(both.child, [best], many=False)
    single, phrase = both.parent.table.singular, builder.columns_words(columns, both.parent, many=False)
    key = both.child.name(column)
    tail = f"FROM {both.sql} ORDER BY {key} {best.sql} LIMIT"
    text = builder.ask(phrase, f"the {single} of the {child}", many=False)
    return candidate(text, f"SELECT {names} {tail} 1", f"SELECT {key} {tail} 2")


def ask_parents_of_two_kinds(builder: Builder) -> QuestionCandidate:
    """Ask for the parents with two kinds of children, or with one kind but not the other."""
    both = builder.join(label=True)
    label = both.parent.table.columns[0]
    if label.kind != "text":
        raise NoFit
    name = both.parent.name(label)
    first, second = _choose_two_conditions(builder, both.child)
    operator = builder.choose(("INTERSECT", "EXCEPT"))
    noun, phrase = builder.noun(both.parent), builder.noun_of(label, both.parent, many=True)
    here, there = (builder.things(QueryTable(both.child.table), [clause]) for clause in (first, second))
    relation = both.relation.of_parent
    form = "{n} {r} both {a} and {b}" if operator == "INTERSECT" else "{n} {r} {a} but no {b}"
    text = builder.ask(phrase, form.format(n=noun, r=relation, a=here, b=there))
    select = f"SELECT {name} FROM {both.sql} WHERE"
    return candidate(text, f"{select} {first.sql} {operator} {select} {second.sql}")


def _choose_two_conditions(builder: Builder, side: QueryTable) -> tuple[Clause, Clause]:
    """Return two conditions on different rows: two values of a category, or conditions on two columns."""
    if not builder.chance(0.6):
        return builder.clause(side), builder.clause(side)
    column = builder.column(side, "category")
    value = builder.value(column)
    noun = builder.noun_of(column)
    clauses = []
    for each in (value, builder.value(column, value)):
        texts = {"before": str(each)} if is_adjectival(column) else {"after": f"whose {noun} is {each}"}
        clauses.append(Clause(f"{side.name(column)} = {literal(each)}", **texts))
    return clauses[0], clauses[1]


def ask_over_three_tables(builder: Builder) -> QuestionCandidate:
    """Ask about three tables: children of a parent of a grandparent, or the two parents of a linking table."""
    child, parent, reference = builder.choose(builder.links())
    middle, others = (parent, parent.references) if builder.chance(0.5) else (child, child.references)
    second = builder.choose([other for other in others if other is not reference])
    top = builder.database.table(second.table)
    if top.name in (child.name, parent.name):
        raise NoFit
    if middle is parent:
        return _ask_grandchildren(
            builder, (QueryTable(child, "T1."), QueryTable(parent, "T2."), QueryTable(top, "T3.")), reference, second
        )
    return _ask_over_link_table(
        builder, (QueryTable(parent, "T1."), QueryTable(child, "T2."), QueryTable(top, "T3.")), reference, second
    )


def _ask_grandchildren(
    builder: Builder, sides: tuple[QueryTable, QueryTable, QueryTable], first: Reference, second: Reference
) -> QuestionCandidate:
    """Ask for children by a condition on their grandparents; `sides` are child, parent and grandparent."""
    child, parent, top = sides
    sql = _join_upwards(child.table, parent.table, top.table, first, second)
    owner = _choose_condition(builder, top)
    clauses = builder.clauses(child, builder.rng.choices((0, 1), (75, 25))[0])
    extra = f"{first.relation.of_child} {builder.noun(parent)} {second.relation.of_child} {owner.after}"
    things = builder.things(child, clauses, extra=extra)
    tail = f"FROM {sql}{where([owner, *clauses])}"
    if builder.chance(0.4):
        return candidate(builder.ask_number(things), f"SELECT COUNT(*) {tail}")
    columns = builder.choose_result_columns(child, builder.rng.choices((1, 2), (70, 30))[0])
    names = ", ".join(child.name(column) for column in columns)
    return candidate(builder.ask(builder.columns_words(columns, child, many=True), things), f"SELECT {names} {tail}")


def _ask_over_link_table(
    builder: Builder, sides: tuple[QueryTable, QueryTable, QueryTable], first: Reference, second: Reference
) -> QuestionCandidate:
    """Ask for rows that a linking table (the middle of `sides`) connects with rows that meet a condition."""
    near, link, far = sides
    sql = (
        f"{near.table.name} AS T1 JOIN {link.table.name} AS T2 ON T1.{first.target} = T2.{first.column.name} "
        f"JOIN {far.table.name} AS T3 ON T2.{second.column.name} = T3.{second.target}"
    )
    owner = _choose_condition(builder, far)
    extra = f"{first.relation.of_parent} {builder.noun(link)} {second.relation.of_child} {owner.after}"
    columns = builder.choose_result_columns(near, builder.rng.choices((1, 2), (75, 25))[0])
    names = ", ".join(near.name(column) for column in columns)
    phrase = builder.choose(("different ", "distinct ", "")) + join_phrases(
        [builder.columns_words(columns, near, many=True)]
    )
    text = builder.ask(phrase, builder.things(near, extra=extra))
    return candidate(text, f"SELECT DISTINCT {names} FROM {sql} WHERE {owner.sql}")


def _join_upwards(
    child: AnnotatedTable, parent: AnnotatedTable, top: AnnotatedTable, first: Reference, second: Reference
) -> str:
    """Return the joins of a table (T1) with its parent (T2) and grandparent (T3)."""
    return (
        f"{child.name} AS T1 JOIN {parent.name} AS T2 ON T1.{first.column.name} = T2.{first.target} "
        f"JOIN {top.name} AS T3 ON T2.{second.column.name} = T3.{second.target}"
    )


def ask_total_over_grandchildren(builder: Builder) -> QuestionCandidate:
    """Ask for an aggregate over the children's children of each row."""
    child, parent, reference = builder.choose(builder.links())
    second = builder.choose(list(parent.references))
    top = QueryTable(builder.database.table(second.table), "T3.")
    if top.table.label is None:
        raise NoFit
    low, mid = QueryTable(child, "T1."), QueryTable(parent, "T2.")
    label = top.table.columns[0]
    sql = _join_upwards(child, parent, top.table, reference, second)
    counted, phrase = ("COUNT(*)", f"number of {builder.noun(low)}")
    if builder.chance(0.4) and any(column.kind in MEASURE for column in child.columns):
        counted, amount = builder.aggregate_of(low, builder.measure(low))
        phrase = f"{amount} of the {builder.noun(low)}"
    things = f"{reference.relation.of_child} {'their' if top.are_people else 'its'} {builder.noun(mid)}"
    text = f"For each {top.table.singular}, show the {builder.noun_of(label, top)} and the {phrase} {things}."
    return candidate(text, f"SELECT {top.name(label)}, {counted} FROM {sql} GROUP BY T3.{second.target}")
