"""Whole programs: the time and the memory of a call, and the events that its loops unroll to."""
