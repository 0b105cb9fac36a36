"""Loaded once by the process that the explorer's workers are copies of: what pictures take."""

from __future__ import annotations

from shardwright.workbench import jobs
from shardwright.workbench.loaded import EXAMINED, TEXT

PICTURE = jobs.picture(EXAMINED, "loaded", TEXT)
TIMELINE = jobs.timeline(EXAMINED, "f")
