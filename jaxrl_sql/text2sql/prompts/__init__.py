"""Prompts: chat templates, few-shot examples, dialects and their encoding."""
