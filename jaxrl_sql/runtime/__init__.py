"""The run folder, journals, metrics, display, hub, endpoints and files of tokenizers."""
