"""Random programs with their own meaning: a generator and an oracle written from the documentation alone."""
