"""From a function of JAX or PyTorch to a program of the language."""
