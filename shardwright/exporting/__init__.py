"""Programs with their layouts, written for other tools."""
