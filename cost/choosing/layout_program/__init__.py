"""The layouts of a program as a 0/1 program with a row of memory for each moment, for HiGHS."""
