"""Cost against latency: a model under every layout, chip count, batch and weight format, and the best of these."""
