"""The command line: one module per command, of which only the chosen one is loaded."""
