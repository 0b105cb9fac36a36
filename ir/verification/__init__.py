"""The verifier: types, extents, lifetimes of values in flight, and demands held to their rules."""
