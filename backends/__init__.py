"""Backends: what runs or shows a program."""
