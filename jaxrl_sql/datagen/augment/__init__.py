"""Augment copies of a set's databases with rows that golds need and with distractor tables.

`required_rows` derives the rows that a query needs, `fill` inserts them, `distractor_tables` adds tables of other
databases. All steps write to copies, return their changes, and reject changes that would affect another gold.
"""

from jaxrl_sql.datagen.augment.change import Change
from jaxrl_sql.datagen.augment.distractor_tables import Donor, add_tables
from jaxrl_sql.datagen.augment.fill import fill, fill_by

__all__ = ["Change", "Donor", "add_tables", "fill", "fill_by"]
