"""Parts of a model's program: the layers of one process of a pipeline, and what gives scores of the tokens of
prompts."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace

from shardwright.cost.programs.resizing import resized
from shardwright.ir.diagnostics import fault
from shardwright.ir.mesh import ONE_CHIP, Mesh
from shardwright.ir.operation import Number
from shardwright.ir.ops import Add, Alias, Full, Iota, Update
from shardwright.ir.program import Carry, DimInfo, Func, Let, Loop, Marking, Program, SetState, Statement, Value
from shardwright.ir.rewriter import Namer
from shardwright.ir.types import Dim, DType, TensorType, ValueType
from shardwright.ir.walk import map_bodies, map_values, names_used, rename_operands
from shardwright.passes.memory.block_batches import OPENING


@dataclass(frozen=True)
class PipelineStage:
    """This is process `index` of `count` in a pipeline."""

    index: int = 0
    count: int = 1

    @property
    def first(self) -> bool:
        return self.index == 0

    @property
    def last(self) -> bool:
        return self.index == self.count - 1

    def layers(self, n: int) -> range:
        """Which of n layers are here; their numbers differ by at most one between processes.

        Raises where there are fewer layers than processes.
        """
        if n < self.count:
            raise fault("too-many-stages", f"{n} layers cannot be divided into {self.count} stages of a pipeline")
        return range(n * self.index // self.count, n * (self.index + 1) // self.count)


@dataclass(frozen=True)
class ProcessPlace:
    """The place of a process among several: its stage of a pipeline, and which chip it is of the mesh that the stage's
    values are split over. Chips of a stage have numbers that follow each other."""

    stage: PipelineStage = PipelineStage()
    mesh: Mesh = ONE_CHIP
    chip: int = 0

    @staticmethod
    def of(index: int, count: int, mesh: Mesh) -> ProcessPlace:
        """The place of process `index` of `count`."""
        stage, chip = divmod(index, mesh.n_chips)
        return ProcessPlace(PipelineStage(stage, count // mesh.n_chips), mesh, chip)

    @property
    def split(self) -> bool:
        """True if values are split over chips."""
        return self.mesh.n_chips > 1

    @property
    def draws(self) -> bool:
        """True if its tokens are everyone's."""
        return self.stage.last and not self.chip

    @property
    def first(self) -> int:
        """The number of the process that is chip 0 of its stage."""
        return self.stage.index * self.mesh.n_chips


ALONE = ProcessPlace()
"""There is one process."""

# ---------------------------------------------------------------- some of the layers


def part_of(program: Program, place: PipelineStage) -> Program:
    """The program as one process of a pipeline runs it: all that comes before and after the layers where it is the
    first or the last, and elsewhere only what later statements here, or state, need of that; its own layers between.
    Between processes go what the loop over layers carries, as parameters `arriving_...` and as results. Layers have the
    numbers that they have among all.

    Raises where what is needed elsewhere needs weights or what the layers leave.
    """
    if place.count == 1:
        return program
    loop = layers_of(program.funcs[0])[1]
    own = place.layers(program.sizes()[loop.dim])
    parts = (_part(program, func, place) for func in program.funcs)
    funcs = tuple(_numbered_from(own.start, loop.dim, part, Namer.of(program, part)) for part in parts)
    used = set[str]().union(*(names_used(func.body) for func in funcs))
    weights = tuple(value for value in program.weights if value.name in used)
    return resized(replace(program, funcs=funcs, weights=weights), {loop.dim: len(own)})


def _numbered_from(first: int, layers: str, func: Func, namer: Namer) -> Func:
    """The function in which what counts along the dimension of the layers, `iota` or a loop, begins with `first`, and
    `size` of it is the number of all."""

    def counted(value: Value) -> tuple[Value, Let]:
        here = replace(value, name=namer.fresh(f"{value.name}_here"))
        return here, Let((value,), Add(), (here.name, Number(str(first))))

    def block(body: tuple[Statement, ...]) -> tuple[Statement, ...]:
        made: list[Statement] = []
        for statement in body:
            match statement:
                case Let(operation=Iota(dim=dim)) if first and dim == layers:
                    here, number = counted(statement.result)
                    made += [replace(statement, results=(here,)), number]
                case Let(operands=operands):
                    fixed = (o.fixed((layers,)) if isinstance(o, Number) else o for o in operands)
                    made.append(replace(statement, operands=tuple(fixed)))
                case Loop(dim=dim, index=str(index)) if first and dim == layers:
                    here, number = counted(Value(index, TensorType(DType.INT32, (), ()), Marking.FOUND))
                    made.append(replace(statement, index=here.name, body=(number, *statement.body)))
                case _:
                    made.append(statement)
        return tuple(made)

    return map_bodies(func, block)


def layers_of(func: Func) -> tuple[tuple[Statement, ...], Loop, tuple[Statement, ...]]:
    """The statements before the loop over layers, the loop, and the statements after it. Raises where there is not
    exactly one."""
    loops = [(at, s) for at, s in enumerate(func.body) if isinstance(s, Loop)]
    if len(loops) != 1:
        raise fault(
            "no-layers",
            f"{func.name} has {len(loops)} loops, and a pipeline goes by the trips of one loop over layers",
            func.span,
            OPENING,
        )
    at, loop = loops[0]
    return func.body[:at], loop, func.body[at + 1 :]


def _handed(kind: ValueType) -> TensorType:
    """The type of what the layers carry where it goes to another process, or out of the program: on the device, with
    all rows on each chip, and nothing split that is open."""
    splits = kind.splits if isinstance(kind, TensorType) else ((),) * len(kind.dims)
    return TensorType(kind.dtype, kind.dims, ((), *splits[1:]))


def _part(program: Program, func: Func, place: PipelineStage) -> Func:
    before, loop, after = layers_of(func)
    params, returns, results = func.params, func.returns, func.results
    if not place.last:
        left = [Value(f"leaving_{v.name}", _handed(v.type), Marking.FOUND) for v in loop.results]
        leaving = [Let((v,), Alias(), (r.name,)) for v, r in zip(left, loop.results, strict=True)]
        after = (*_needed(program, loop, after, set()), *leaving)
        returns, results = tuple(v.name for v in left), tuple(v.type for v in left)
    if not place.first:
        arriving = [Value(f"arriving_{c.value.name}", _handed(c.value.type)) for c in loop.carries]
        carries = tuple(Carry(c.value, v.name) for c, v in zip(loop.carries, arriving, strict=True))
        loop = replace(loop, carries=carries)
        wanted = names_used((*loop.body, *after)) | set(loop.following) | set(returns)
        before = _needed(program, loop, before, wanted)
        params = (*params, *arriving)
    return replace(func, params=params, body=(*before, loop, *after), returns=returns, results=results)


def _needed(program: Program, loop: Loop, body: Sequence[Statement], wanted: set[str]) -> tuple[Statement, ...]:
    """The statements that set state, those that define what is wanted, and what they need."""
    kept: list[Statement] = []
    for statement in reversed(body):
        made = {value.name for value in statement.results}
        if isinstance(statement, SetState) or made & wanted:
            kept.append(statement)
            wanted = wanted | names_used((statement,))
    elsewhere = {value.name for value in (*program.weights, *loop.results)}
    for statement in kept:
        missing = sorted(names_used((statement,)) & elsewhere)
        if missing:
            raise fault(
                "no-pipeline",
                f"every stage of a pipeline would need {', '.join(missing)}, which only one has",
                statement.span,
            )
    return tuple(reversed(kept))


# ---------------------------------------------------------------- scores of prompts

_POSITIONS = "P"


def with_hidden(program: Program, name: str) -> Program:
    """The program with what the layers leave among the results of a function, `left_...`."""
    func = program.func(name)
    _, loop, _ = layers_of(func)
    left = [Value(f"left_{v.name}", _handed(v.type), Marking.FOUND) for v in loop.results]
    body = (*func.body, *(Let((v,), Alias(), (r.name,)) for v, r in zip(left, loop.results, strict=True)))
    made = replace(
        func,
        body=body,
        returns=(*func.returns, *(v.name for v in left)),
        results=(*func.results, *(v.type for v in left)),
    )
    return replace(program, funcs=tuple(made if each is func else each for each in program.funcs))


def scoring(program: Program, sampling: Program, decode: str, positions: int, batch: str = "B") -> Program:
    """A program of one function, `score`: from what the layers leave at so many positions, and the token that follows
    each, the log-probabilities of these [positions, B]. What comes after the layers is that of `decode`, of one
    position; `logprob` of `sampling` is the same for its logits."""
    func = program.func(decode)
    _, loop, after = layers_of(func)
    rows = program.sizes(func)[batch]
    dim, row = Dim(_POSITIONS, positions), Dim(batch, rows)
    left = tuple(replace(v, type=_along(v, dim), marking=Marking.DEMANDED) for v in loop.results)
    following = Value("following", TensorType(DType.INT32, (dim, row), ((), ())))
    scores = TensorType(DType.F32, (dim, row), ((), ()))
    logprob = sampling.func("logprob")
    names = {v.name: f"scored_{v.name}" for s in logprob.body for v in s.results}
    names |= dict(zip((v.name for v in logprob.params), (func.returns[0], following.name), strict=True))
    inlined = map_values(
        tuple(rename_operands(s, names) for s in logprob.body), lambda v: replace(v, name=names.get(v.name, v.name))
    )
    wanted = {func.returns[0]}
    kept: list[Statement] = []
    for statement in reversed(after):
        if {value.name for value in statement.results} & wanted:
            kept.append(statement)
            wanted |= names_used((statement,))
    grown = Let((Value("grown", scores, Marking.FOUND),), Update(_POSITIONS), ("all", names[logprob.returns[0]], "p"))
    body = (*reversed(kept), *inlined, grown)
    zero = Let((Value("none_yet", scores, Marking.FOUND),), Full((_POSITIONS, batch), DType.F32), (Number("0.0"),))
    carried = Carry(Value("all", scores, Marking.FOUND), "none_yet")
    over = Loop((Value("scores", scores, Marking.FOUND),), _POSITIONS, "p", (carried,), body, ("grown",))
    weights = tuple(value for value in program.weights if value.name in names_used((over,)))
    made = Func("score", func.overrides, (*left, following), (zero, over), ("scores",), (scores,))
    return replace(
        program, dims=(*program.dims, DimInfo(_POSITIONS, positions)), weights=weights, state=(), funcs=(made,)
    )


def _along(value: Value, dim: Dim) -> ValueType:
    kind = _handed(value.type)
    return replace(kind, dims=(dim, *kind.dims), splits=((), *kind.splits))
