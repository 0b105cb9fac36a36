"""From a file to a checked, explicit program and to a module: what commands and functions share."""
