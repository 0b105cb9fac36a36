"""What a program costs: chips as data, the time of collectives, the planning and pricing of movements."""
