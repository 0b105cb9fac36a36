"""Looped collectives: gathers and scatters beside products as loops that send round a ring."""
