"""Published measurements and statements beside predictions."""
