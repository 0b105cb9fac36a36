"""Choosing one strategy for each node, exactly: costs of nodes and of pairs, and memory over time."""
