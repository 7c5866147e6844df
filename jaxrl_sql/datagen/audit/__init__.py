"""Report train/eval leakage and uninformative golds in question sets.

`overlap` finds questions, SQL and databases that evaluation shares with training, and questions that a set repeats.
`golds` runs the golds (the reference queries) and finds those that fail, that a constant answer matches, or that one
database cannot distinguish from another query.
"""

from jaxrl_sql.datagen.audit.finding import Finding, QuestionSet
from jaxrl_sql.datagen.audit.golds import audit_golds
from jaxrl_sql.datagen.audit.overlap import (
    find_repeated_questions,
    find_shared_databases,
    find_shared_questions,
    find_shared_sql,
)

__all__ = [
    "Finding",
    "QuestionSet",
    "audit_golds",
    "find_repeated_questions",
    "find_shared_databases",
    "find_shared_questions",
    "find_shared_sql",
]
