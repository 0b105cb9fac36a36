"""Checkpoints that are made once for the session."""

from __future__ import annotations

from models.conftest import checkpoint

__all__ = ["checkpoint"]
