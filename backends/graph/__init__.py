"""Pictures of programs: values as edges labelled with their layouts, operations as nodes."""

from __future__ import annotations

from shardwright.backends.graph.annotations import Annotation
from shardwright.backends.graph.drawing import FORMATS, Drawing, draw
from shardwright.backends.graph.rendering import render

__all__ = ["FORMATS", "Annotation", "Drawing", "draw", "render"]
