"""Compiled programs proved: run in the simulator at reduced sizes, against their unsharded meaning."""
