"""From questions and answers to batches: order, packing and supervised batches."""
