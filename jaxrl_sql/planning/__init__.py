"""Whether a run fits its devices and how fast it can be, before they are rewarded for."""
