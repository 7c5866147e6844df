"""Checkpoints on disk: read and write Hugging Face folders and GGUF files."""
