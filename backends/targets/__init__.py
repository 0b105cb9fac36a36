"""The compilers of accelerators, run where there is none: targets by name, and what becomes of a module on them."""
