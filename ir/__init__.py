"""The intermediate representation: types, operations and their strategies, programs, and their text."""
