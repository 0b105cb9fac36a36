"""Passes: one rewrite of programs per file."""
