"""The meaning of programs: the unsharded reference, and the simulator with one array for each chip."""
