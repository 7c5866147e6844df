"""Pure functions of arrays: products, masked sums, random keys, the next-token distribution."""
