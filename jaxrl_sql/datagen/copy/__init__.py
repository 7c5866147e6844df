"""Copy databases between SQLite and other engines."""
