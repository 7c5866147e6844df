"""Database engines under one interface, a module each."""
