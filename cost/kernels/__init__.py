"""The kernels of an explicit program: which statements run as one, and the work of each."""
