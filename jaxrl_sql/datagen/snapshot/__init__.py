"""Take a sample out of a server's database, as one SQLite file."""
