"""Numbers of few bits in groups that share a scale and a least value, asymmetric (Sheng et al. 2023, section 5)."""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True, slots=True)
class GroupQuantization:
    """`bits` (4 or 8) an element, and for each `group` of them along a row a scale and a least value of 16 bits."""

    bits: int
    group: int = 64

    @property
    def levels(self) -> int:
        """A group's least value is 0, its greatest this."""
        return 2**self.bits - 1

    @property
    def element_bytes(self) -> float:
        """Bytes of an element, its part of the numbers of its group included."""
        return self.bits / 8 + 4 / self.group


INT4 = GroupQuantization(4)
INT8 = GroupQuantization(8)

WEIGHT_FORMATS = {"int8": INT8, "int4": INT4}
"""What `--weights` asks for, by name."""
