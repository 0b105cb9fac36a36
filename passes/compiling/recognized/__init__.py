"""Operations that models write out, element by element."""
