"""Loaded once by the process that workers are copies of: what looking at a text takes is there when they begin."""

from __future__ import annotations

from shardwright.ir.diagnostics import Source
from shardwright.workbench.examine import examine

TEXT = """\
mesh x=2
dim B=2 E=2 F=2
func f(a: BE_x, w: EF?) -> BF? {
  return a @ w
}
"""
"""A small program."""

EXAMINED = examine(Source("preloaded", TEXT))
