"""Groups of tokens that are sent to experts: how many there are, and how many slots each has at an expert."""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import Literal

from shardwright.ir.diagnostics import NOWHERE, DiagnosticError, fault
from shardwright.models.description import Experts, Model

ExpertsForm = Literal["replicated", "routed", "all-to-all"]
"""Every expert computes every token, or the experts that the router chose, by grouped products; or tokens are sent to
these."""


def no_experts(model: Model) -> DiagnosticError:
    """The error of tokens that are to be sent to experts where there are none."""
    found = f"{model.architecture} has no experts that tokens could be sent to"
    return fault("no-experts", found, NOWHERE, "leave --experts out")


def check_capacity(form: ExpertsForm, capacity: float | None) -> None:
    """Raises where experts cannot have such a capacity, or have none since tokens are not sent to them."""
    if capacity is not None and form != "all-to-all":
        raise fault("bad-setting", "expert_capacity needs experts='all-to-all'")
    if capacity is not None and not 0 < capacity < math.inf:
        raise fault("bad-capacity", f"the capacity of experts is a number above 0, not {capacity}")


def groups_of(
    model: Model, form: ExpertsForm, capacity: float | None, batch: int, length: int, rows: str = "B"
) -> TokenGroups | None:
    """The groups of so many tokens, None where they are not sent to experts. Raises where there are no experts, or no
    such capacity."""
    check_capacity(form, capacity)
    if form != "all-to-all":
        return None
    if model.feedforward.experts is None:
        raise no_experts(model)
    return TokenGroups(rows, batch, length, model.feedforward.experts, capacity)


@dataclass(frozen=True)
class TokenGroups:
    """The tokens of a function, `batch` rows of `length`, in groups (GShard, Lepikhin et al. 2021, section 2.2).

    The rows are divided into `over_rows` groups (dimension J) and the positions of each into `over_positions`
    (dimension O), so many that J * O is X, the number of experts, where the sizes have the divisors. The groups thus
    depend on the sizes of the model and of the batch alone, and not on the mesh: axes that divide the experts divide
    the groups. An expert has `slots` (C) for each group. Without `capacity` these are as many as the group has
    tokens, and none is ever dropped; with it ceil(capacity * chosen * tokens / X).

    `rows` is the dimension of the rows, B or B1; the dimensions of its groups carry its digit.
    """

    rows: str
    batch: int
    length: int
    experts: Experts
    capacity: float | None = None

    @property
    def over_rows(self) -> int:
        return math.gcd(self.batch, self.experts.number)

    @property
    def over_positions(self) -> int:
        return math.gcd(self.length, self.experts.number // self.over_rows)

    @property
    def tokens(self) -> int:
        """The tokens of one group."""
        return (self.batch // self.over_rows) * (self.length // self.over_positions)

    @property
    def slots(self) -> int:
        if self.capacity is None:
            return self.tokens
        return min(self.tokens, math.ceil(self.capacity * self.experts.chosen * self.tokens / self.experts.number))

    @property
    def bounded(self) -> bool:
        """Tells whether a group may have more tokens for an expert than slots."""
        return self.slots < self.tokens

    def dim(self, letter: str) -> str:
        """J of the groups, M rows in a group, S tokens in a group, C slots, Z slots of all experts."""
        return letter + self.rows[1:]

    @property
    def dims(self) -> tuple[str, ...]:
        """The dimensions that number the groups."""
        return (self.dim("J"), "O") if self.over_positions > 1 else (self.dim("J"),)

    @property
    def sizes(self) -> dict[str, int | str]:
        """The dimensions, the rows and the positions as products of theirs: text is an expression."""
        group, member, tokens, slots = (self.dim(letter) for letter in "JMSC")
        made: dict[str, int | str] = {group: self.over_rows, member: self.batch // self.over_rows}
        made[self.rows] = f"{group}*{member}"
        along = "L"
        if self.over_positions > 1:
            made |= {"O": self.over_positions, "Q": self.length // self.over_positions, "L": "O*Q"}
            along = "Q"
        made[tokens] = f"{along}*{member}"
        made[slots] = self.slots if self.bounded else tokens
        return made | {self.dim("Z"): f"X*{slots}"}
