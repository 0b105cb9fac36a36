"""Real models in: from a Hugging Face config and its tensors to a program and the arrays of its weights."""
