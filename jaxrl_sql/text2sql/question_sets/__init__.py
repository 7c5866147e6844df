"""Question sets: filters by gold and length, columns hidden from the model, and lazily read huge sets."""
