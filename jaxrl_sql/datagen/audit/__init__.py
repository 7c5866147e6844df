"""What is wrong with a set before anybody trains on it or measures with it.

`overlap` finds what evaluation shares with training: questions, SQL and databases. `golds` runs the golds: which fail,
which an empty or a constant answer matches, and which other rows in the tables would not tell from another query.
"""

from jaxrl_sql.datagen.audit.finding import Finding, Set
from jaxrl_sql.datagen.audit.golds import audit_golds
from jaxrl_sql.datagen.audit.overlap import shared_databases, shared_questions, shared_sql

__all__ = ["Finding", "Set", "audit_golds", "shared_databases", "shared_questions", "shared_sql"]
