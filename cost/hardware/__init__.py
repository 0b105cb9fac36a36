"""Chips, machines, their networks and runtimes as data, and what is calibrated of them."""
