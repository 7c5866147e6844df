"""Weights on disk: Hugging Face folders and GGUF files, read onto a mesh and written back."""
