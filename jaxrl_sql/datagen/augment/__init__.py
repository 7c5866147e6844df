"""Augment copies of the databases of a question set: with rows that golds need, and with distractor tables.

A gold is the reference query of a question; if it returns no row, many wrong queries match it. `required_rows` derives
the rows that a query needs, and `fill` inserts them. `distractor_tables` adds tables of other databases, from which a
model must learn to choose. All steps write to copies, return their changes, and reject changes that would affect
another gold.
"""

from jaxrl_sql.datagen.augment.change import Change
from jaxrl_sql.datagen.augment.distractor_tables import Donor, add_tables
from jaxrl_sql.datagen.augment.fill import fill, fill_by

__all__ = ["Change", "Donor", "add_tables", "fill", "fill_by"]
