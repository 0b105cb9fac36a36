"""Text from compiled models: sampling, batches of prompts, and the engine that runs them."""
