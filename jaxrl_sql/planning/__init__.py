"""Estimate the memory and the speed of a run before it is started."""
