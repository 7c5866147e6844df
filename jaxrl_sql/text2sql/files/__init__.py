"""From folders of questions and databases to token ids: loaders, schemas, prompts, filters, order and packing."""
