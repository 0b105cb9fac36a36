"""Single movements: what each does to a type, the bytes that a chip receives, the time on a network."""
