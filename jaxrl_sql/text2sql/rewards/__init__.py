"""From completions to rewards: parsing (`extract`), execution and comparison (`score`), and each system's reward."""
