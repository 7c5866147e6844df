"""Sample a database of another engine into a SQLite file, from which prompts take schema and values.

The sample has the first rows of each table, and the rows that they reference.
"""
