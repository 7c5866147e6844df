"""Questions from a grammar: query and wording are built together, clause by clause (`--style grammar`)."""
