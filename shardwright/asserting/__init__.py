"""Assertions on the collectives of compiled functions, for tests of users' own projects."""
