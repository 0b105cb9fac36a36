"""The steps of elaboration, from syntax to one function: its names, its expressions, its statements."""
