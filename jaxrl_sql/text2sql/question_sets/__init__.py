"""Question sets: filters by gold SQL and length, columns hidden from the model, and lazily read huge sets."""
