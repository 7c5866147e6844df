"""Database engines (SQLite, DuckDB, PostgreSQL, MySQL) under one interface, with one module per engine."""
