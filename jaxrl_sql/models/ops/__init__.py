"""Pure functions, the ground floor: products, masked sums, random keys, the next-token distribution, tokenizers."""
