"""Copy SQLite databases to other engines, and sample databases of other engines into small SQLite files for prompts."""
