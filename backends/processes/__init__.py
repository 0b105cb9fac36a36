"""Several processes that run one program: meeting, messages, and noticing who is lost."""
