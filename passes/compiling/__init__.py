"""The passes that `compile` runs: from a program with holes to one with every movement written."""
