"""The paper's transformations: weights gathered, packed, padded, quantized; attention over the batch."""
