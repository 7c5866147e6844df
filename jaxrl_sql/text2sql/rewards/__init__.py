"""From completions to rewards: extraction (`extract`), scoring (`score`), and a file per system with its reward."""
