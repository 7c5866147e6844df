"""Whether a run fits its devices and how fast it can be, before money is spent on them."""
