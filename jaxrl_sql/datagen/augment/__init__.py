"""Make more of a set: copies of its databases with rows that golds need, and with tables that they do not.

`required_rows` reads from a query which rows it needs, `fill` inserts them, `distractor_tables` adds tables of other
databases. All write to copies, tell what they changed, and leave alone what would change another gold's meaning.
"""

from jaxrl_sql.datagen.augment.change import Change
from jaxrl_sql.datagen.augment.distractor_tables import Donor, add_tables
from jaxrl_sql.datagen.augment.fill import fill, fill_by

__all__ = ["Change", "Donor", "add_tables", "fill", "fill_by"]
