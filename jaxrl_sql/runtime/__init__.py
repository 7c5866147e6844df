"""Host services without JAX: the run folder, journals, metrics, display, hub, endpoints and files of tokenizers."""
