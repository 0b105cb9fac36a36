"""The PyTorch backend: programs on one device, and a runtime for those whose values live on host and disk too."""
