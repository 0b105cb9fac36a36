"""Weights, state and values on host and disk: fetched, stored, and scheduled block by block."""
