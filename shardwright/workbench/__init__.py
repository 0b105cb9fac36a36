"""The parts that editors and the explorer have in common: a text looked at while it is written, and who looks at it."""
