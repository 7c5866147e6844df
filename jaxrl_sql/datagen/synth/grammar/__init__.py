"""Generate questions from a grammar that builds query and wording together, clause by clause (`--style grammar`)."""
