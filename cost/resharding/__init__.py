"""The movement planner: the cheapest way from one type to another, its bound and its time."""
