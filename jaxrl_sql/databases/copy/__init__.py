"""Copy SQLite databases to other engines, and their golds."""
