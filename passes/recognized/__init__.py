"""What models write out, element by element, and the operation that it is."""
