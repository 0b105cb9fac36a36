"""The choice of layouts: the problem, its factors, and the ways to solve and prove it."""
