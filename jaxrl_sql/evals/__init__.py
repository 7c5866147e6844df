"""What a set of predictions is worth: `execution` counts results that equal the gold's."""
