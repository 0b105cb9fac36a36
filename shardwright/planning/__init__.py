"""How to serve a model on chips."""

from __future__ import annotations

from shardwright.planning.planner import plan, plan_meshes
from shardwright.planning.serving import Demand, Plan, Served, limit, serving_program

__all__ = ["Demand", "Plan", "Served", "limit", "plan", "plan_meshes", "serving_program"]
