"""The cost of a program: chips as data, the time of collectives, the planning and pricing of movements."""
