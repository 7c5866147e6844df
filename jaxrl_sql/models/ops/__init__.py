"""Pure functions of arrays: matrix products, masked reductions, random keys, next-token distribution, rounding."""
