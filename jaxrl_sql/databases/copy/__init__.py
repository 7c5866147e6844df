"""Copy SQLite databases to other engines, and translate the golds: the reference queries of questions about them."""
