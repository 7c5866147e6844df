"""From completions to rewards: extraction (`extract`), scoring (`score`), and one file of payment a system."""
