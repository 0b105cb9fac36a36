"""Measurements of this machine beside published figures: compiled modules, and small models on its cores."""
