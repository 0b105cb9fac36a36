"""The names and types that a program with pipeline stages has beside those of the program without."""

from __future__ import annotations

from dataclasses import dataclass, replace

from shardwright.ir.diagnostics import NOWHERE, DiagnosticError, Span, fault
from shardwright.ir.mesh import Mesh
from shardwright.ir.names import is_valid_name
from shardwright.ir.program import DimInfo, Func, Program
from shardwright.ir.types import Dim, TensorType, ValueType
from shardwright.passes.micro_batches import MicroBatches, check_chips, fresh_dim


@dataclass(frozen=True)
class StageOptions:
    """The options of the pass: the layers along `dim` are divided over `stages` along a new mesh axis, the rows of
    `batch` into `micro_batches`."""

    stages: int = 2
    micro_batches: int = 1
    axis: str = "p"
    dim: str = "N"
    batch: str = "B"


def no_pipeline(message: str, span: Span = NOWHERE, *notes: str) -> DiagnosticError:
    """Why a program cannot be divided into stages."""
    return fault("no-pipeline", f"pipeline-layers: {message}", span, *notes)


def _bad_option(message: str, *notes: str) -> DiagnosticError:
    return fault("bad-option", f"pipeline-layers: {message}", NOWHERE, *notes)


def concrete(kind: ValueType) -> TensorType:
    """The type, which has no holes in explicit programs."""
    assert isinstance(kind, TensorType)
    return kind


class StageTypes:
    """The names that the new program has beside those of the old, and its types.

    Raises a `DiagnosticError` where sizes or names do not allow the stages.
    """

    def __init__(self, program: Program, options: StageOptions) -> None:
        self.program, self.options = program, options
        self._check()
        taken: set[str] = set()

        def fresh(like: str) -> str:
            taken.add(name := fresh_dim(program, taken, like))
            return name

        self.layers, self.axis = options.dim, options.axis
        size = program.dim(self.layers).size
        self.stage = Dim(fresh("S"), options.stages)
        self.own = Dim(fresh(self.layers), size // options.stages)
        self.rounds = Dim(fresh("R"), options.micro_batches + options.stages - 1)
        self.several = options.micro_batches > 1
        self.count = Dim(fresh("M"), options.micro_batches) if self.several else Dim("", 1)
        rows = program.dim(options.batch).size if self.several else 0
        self.rows = Dim(fresh(options.batch), rows // options.micro_batches) if self.several else Dim("", 1)
        self.renamed = {options.batch: self.rows.name} if self.several else {}
        self.batches = MicroBatches(options.batch, self.count.name, options.micro_batches, self.rows.size)
        if self.several:
            check_chips(program, self.batches, no_pipeline)
        self.layered = {v.name for v in (*program.weights, *program.state) if self.layers in v.type.names}

    def _check(self) -> None:
        program, options = self.program, self.options
        if options.stages < 2 or options.micro_batches < 1:
            raise _bad_option("there are two stages or more, and one micro-batch or more")
        if not is_valid_name(options.axis):
            raise _bad_option(f"{options.axis} is no name of a mesh axis", "one is axis=stage")
        if options.axis in program.mesh:
            raise _bad_option(f"the mesh has an axis {options.axis} already", "name another, as in axis=stage")
        names = [dim.name for dim in program.dims]
        for name in (options.dim, options.batch)[: 1 + (options.micro_batches > 1)]:
            if name not in names:
                raise _bad_option(f"the program has no dimension {name}", f"it has {', '.join(names)}")
        for name, count, parts in (
            (options.dim, options.stages, "stages"),
            (options.batch, options.micro_batches, "micro-batches"),
        ):
            if count > 1 and program.dim(name).size % count:
                size = program.dim(name).size
                raise fault(
                    "not-divisible", f"{name}={size} does not divide over {count} {parts}", program.dim(name).span,
                    f"give {name} a size that is a multiple of {count}",
                )  # fmt: skip
        for func in program.funcs:
            for name, _ in func.overrides:
                if name == options.dim or (name == options.batch and options.micro_batches > 1):
                    raise no_pipeline(f"{func.name} gives {name} a size of its own", func.span)

    def rewritten(self, funcs: tuple[Func, ...]) -> Program:
        """The program with these functions in place of its own, over the larger mesh."""
        program = self.program
        dims = [replace(dim, order=(self.axis,)) if dim.name == self.layers else dim for dim in program.dims]
        dims += [DimInfo(self.stage.name, self.stage.size, order=(self.axis,)), DimInfo(self.own.name, self.own.size)]
        dims.append(DimInfo(self.rounds.name, self.rounds.size))
        if self.several:
            order = self.batches.order(program.dim(self.options.batch), program.mesh)
            dims += [DimInfo(self.count.name, self.count.size), DimInfo(self.rows.name, self.rows.size, order=order)]
        return replace(
            program,
            mesh=Mesh(((self.axis, self.stage.size), *program.mesh.items())),
            dims=tuple(dims),
            weights=tuple(replace(value, type=self.over_stages(value.concrete)) for value in program.weights),
            state=tuple(replace(value, type=self.of_state(value.concrete)) for value in program.state),
            funcs=funcs,
        )

    # ------------------------------------------------------------ types

    def over_stages(self, kind: TensorType) -> TensorType:
        """The type of a weight: N is split over the stages."""
        if self.layers not in kind.names:
            return kind
        at = kind.names.index(self.layers)
        if kind.splits[at]:
            raise no_pipeline(f"{self.layers} is split over {', '.join(kind.splits[at])} already")
        return replace(kind, splits=(*kind.splits[:at], (self.axis,), *kind.splits[at + 1 :]))

    def parted(self, kind: TensorType) -> TensorType:
        """The type by stages and the layers of each: N is S and N2, S still whole."""
        return self._divided(kind, self.layers, (self.stage, self.own), ((), ()))

    def by_micro_batch(self, kind: TensorType) -> TensorType:
        """The type by rows of each micro-batch and micro-batches: B is B2 and M."""
        if self.options.batch not in kind.names or not self.several:
            return kind
        return self._divided(kind, self.options.batch, (self.rows, self.count), (kind.split(self.options.batch), ()))

    def kept_by_micro_batch(self, kind: TensorType) -> TensorType:
        """The same where it is written by micro-batches, the rows of each together: M before B2."""
        if self.options.batch not in kind.names or not self.several:
            return kind
        return self._divided(kind, self.options.batch, (self.count, self.rows), ((), kind.split(self.options.batch)))

    def of_state(self, kind: TensorType) -> TensorType:
        """The type of a layer's state: by stage, the stage's layer, micro-batch and row."""
        if self.layers not in kind.names:
            return kind
        return self.kept_by_micro_batch(self.staged(kind, self.parted(kind)))

    def staged(self, kind: TensorType, parted: TensorType) -> TensorType:
        """The type with S split over the stages."""
        if kind.split(self.layers) and kind.split(self.layers) != (self.axis,):
            raise no_pipeline(f"{self.layers} is split over {', '.join(kind.split(self.layers))} already")
        splits = ((self.axis,) if dim == self.stage else s for dim, s in zip(parted.dims, parted.splits, strict=True))
        return replace(parted, splits=tuple(splits))

    def own_rows(self, kind: TensorType) -> TensorType:
        """The type of the rows of one micro-batch."""
        batch = self.options.batch
        if not self.several or batch not in kind.names:
            return kind
        return self._divided(kind, batch, (self.rows,), (kind.split(batch),))

    def each_stage(self, kind: TensorType) -> TensorType:
        """The type of one value for each stage, S before all else."""
        return replace(kind, dims=(self.stage, *kind.dims), splits=((self.axis,), *kind.splits))

    def stage_first(self, kind: TensorType) -> TensorType:
        """The type with S, which it has, before all else: as `lookup` by stages gives it."""
        return self.each_stage(kind.without_dim(self.stage.name))

    @staticmethod
    def _divided(kind: TensorType, name: str, dims: tuple[Dim, ...], splits: tuple[tuple[str, ...], ...]) -> TensorType:
        at = kind.names.index(name)
        return replace(
            kind,
            dims=(*kind.dims[:at], *dims, *kind.dims[at + 1 :]),
            splits=(*kind.splits[:at], *splits, *kind.splits[at + 1 :]),
        )
