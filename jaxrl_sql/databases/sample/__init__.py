"""Sample a server's database into one SQLite file: the first rows of each table, and the rows that they reference."""
