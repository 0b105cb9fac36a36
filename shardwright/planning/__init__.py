"""How to serve a model on chips."""

from __future__ import annotations

from shardwright.planning.planner import plan, plan_meshes
from shardwright.planning.serving import ServingChoice, ServingDemand, ServingPlan, limit, serving_program

__all__ = ["ServingChoice", "ServingDemand", "ServingPlan", "limit", "plan", "plan_meshes", "serving_program"]
