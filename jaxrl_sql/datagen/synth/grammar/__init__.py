"""Generate questions from a grammar that builds query and wording together, clause by clause (`--style grammar`).

A form (`forms`, `joined_forms`) is a function that builds a question of one structure, such as a count per group.
`table` has the forms by difficulty, `builder` and `phrases` the common parts, and `naming` renames the databases.
"""
