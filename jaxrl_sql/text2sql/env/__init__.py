"""Running SQL: the executor, addresses, dialects and dialogues; `ports` is the interface of an executor."""
