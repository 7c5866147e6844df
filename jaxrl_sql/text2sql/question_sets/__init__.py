"""Question sets: filters by golds and length, columns hidden from the model, and huge sets read as they are asked."""
