"""Generation with weights, cache and hidden states on device, host and disk: policies put into types, and the run."""
