"""One rule for each primitive of JAX: the dimensions that it ties and the statements that it becomes."""

from shardwright.tracing.rules import bodies, decompositions, indexing, opaque, products, scatters, shapes
from shardwright.tracing.rules.table import RULES

__all__ = ["RULES", "bodies", "decompositions", "indexing", "opaque", "products", "scatters", "shapes"]
