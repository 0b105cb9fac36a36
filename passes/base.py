"""The definition of a pass: a pure function from programs to programs, with options, that states the level of its
input."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, ClassVar, Protocol

from shardwright.ir.program import Program
from shardwright.ir.verification.verifier import Level
from shardwright.ir.weight_source import WeightSource


class Proof(Protocol):
    """How far the layouts that a pass chose are from the best at most; its text says so."""

    @property
    def proved(self) -> bool: ...

    @property
    def warnings(self) -> tuple[str, ...]: ...

    def as_json(self) -> Mapping[str, Any]: ...

    def beyond(self, other: Any) -> str:
        """The extra cost of these layouts over others of the same objective."""
        ...


@dataclass(frozen=True)
class Pass(ABC):
    """A rewrite of whole programs. Subclasses are frozen dataclasses whose fields are the options.

    Valid programs in, valid programs out: the pass manager verifies the program at `takes` before and at
    `leaves` after. The meaning of the program stays, which the tests show in the simulator.
    """

    name: ClassVar[str]
    takes: ClassVar[Level] = Level.SURFACE
    leaves: ClassVar[Level] = Level.SURFACE

    @abstractmethod
    def run(self, program: Program) -> Program:
        """The rewritten program. Raises a `DiagnosticError` where the program does not allow it."""

    def run_with_proof(self, program: Program) -> tuple[Program, Proof | None]:
        """The rewritten program, and of a pass that chooses layouts how far these are from the best at most."""
        return self.run(program), None

    def weights(self, program: Program, source: WeightSource) -> WeightSource:
        """The weights of `run(program)`, read from those of `program` as they are asked for.

        The same ones, unless the pass stores weights otherwise.
        """
        return source
