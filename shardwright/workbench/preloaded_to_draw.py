"""Loaded once by the process that the explorer's workers are copies of: what pictures take. What is missing for them is
said where they are asked for."""

from __future__ import annotations

from contextlib import suppress

from shardwright.workbench import jobs
from shardwright.workbench.preloaded import EXAMINED, TEXT

with suppress(Exception):
    jobs.picture(EXAMINED, "preloaded", TEXT)
with suppress(Exception):
    jobs.timeline(EXAMINED, "f")
