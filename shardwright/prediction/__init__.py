"""Predictions: what models cost on chips, from programs that the compiler makes, beside what others measured."""
