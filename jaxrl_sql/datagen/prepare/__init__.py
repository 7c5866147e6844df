"""Prepare training data: select from sets, merge, balance, and split by database into plain folders."""
