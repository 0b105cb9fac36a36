"""Text from checkpoints: generation by compiled programs, and offloading where the model is too large."""
