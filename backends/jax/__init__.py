"""Lowers explicit programs to stand-alone JAX source, and runs such source."""
