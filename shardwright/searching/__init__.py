"""Searches beyond one program's layouts: rewrites, shapes of the mesh, and the next best of each choice."""
