"""Optimized HLO text, as XLA's compilers print it: read, and its collectives told in the language's words."""
