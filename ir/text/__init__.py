"""The language as text: grammar, parser, syntax tree, formatter, and programs printed."""
