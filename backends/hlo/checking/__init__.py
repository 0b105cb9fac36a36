"""The rules by which a partitioned program is checked (`backends.hlo.faults`)."""
