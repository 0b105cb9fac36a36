"""A function of a program as stages: what comes before its loop over layers, each trip of it, and what comes after.

In a layer's body attention over a KV cache becomes one statement with the updates of the cache, `Attend`, because the
runtime keeps the cache in pieces that no statement sees.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass

from shardwright.ir import ops
from shardwright.ir.diagnostics import fault
from shardwright.ir.program import Func, Let, Loop, Program, SetState, Statement, Value
from shardwright.ir.types import DType, Shape
from shardwright.ir.walk import names_used


@dataclass(frozen=True)
class Attend:
    """`result = attention of q over the cache (keys, values) and over k_new, v_new`, which come after it.

    `result` has the dimensions of `q`: `batch`, `length`, `heads` of keys and values, groups of queries, and `size`.
    `position` is the state that says how many positions of a row are cached.
    """

    result: Value
    q: str
    k_new: str
    v_new: str
    position: str
    keys: str
    values: str
    scale: float
    window: int
    batch: str
    length: str
    heads: tuple[str, ...]
    size: str


@dataclass(frozen=True)
class Stage:
    """Statements that need their weights at the same time.

    `layer` is the trip of the loop, None outside it. `takes` are the values that come from the stages before, `gives`
    those that later ones need; `weights` are read here.
    """

    index: int
    layer: int | None
    body: tuple[Statement | Attend, ...]
    takes: tuple[str, ...]
    gives: tuple[str, ...]
    weights: tuple[str, ...]

    @property
    def own(self) -> frozenset[str]:
        """The names of what is computed here."""
        lets = [s for s in self.body if isinstance(s, Let)]
        return frozenset(value.name for statement in lets for value in statement.results)

    @property
    def attends(self) -> bool:
        return any(isinstance(statement, Attend) for statement in self.body)

    @property
    def name(self) -> str:
        return (
            f"layer {self.layer}" if self.layer is not None else "tables before" if self.index == 0 else "tables after"
        )


@dataclass(frozen=True)
class Staged:
    """A function in stages: all of them, or those of one process of a pipeline (`pipeline.part_of`), which has the
    `first` or the `last` or neither."""

    program: Program
    func: Func
    loop: Loop
    stages: tuple[Stage, ...]
    first: bool = True
    last: bool = True

    @property
    def attention(self) -> Attend | None:
        return next((s for s in self.stages[1].body if isinstance(s, Attend)), None)

    def outputs(self, stage: Stage) -> tuple[str, ...]:
        """What a stage's statements leave: values for later stages and the loop's first ones; the next ones; the
        results of the function."""
        if stage.layer is not None:
            return self.loop.following
        if stage is not self.stages[0]:
            return self.func.returns if self.last else ()
        return (*stage.gives, *(carry.initial for carry in self.loop.carries if self.first))

    def taken(self, stage: Stage) -> list[Value]:
        """The values that a stage takes from those before."""
        lets = [s for s in self.func.body if isinstance(s, Let)]
        values = [*self.func.params, *(value for let in lets for value in let.results)]
        return [value for value in values if value.name in stage.takes]

    def shapes(self, stage: Stage) -> dict[str, Shape]:
        """Of what may be there before the statements of a stage, those of a layer without the loop's dimension."""
        before = [v for s in self.func.body if isinstance(s, Let) for v in s.results]
        values = [*self.program.weights, *self.program.state, *self.func.params, *before, *self.loop.results]
        if stage.layer is not None:
            values += [carry.value for carry in self.loop.carries]
        made = {value.name: value.shape for value in values}
        if stage.layer is not None:
            made = {name: without(shape, self.loop.dim) for name, shape in made.items()}
            if self.loop.index is not None:
                made[self.loop.index] = Shape(DType.INT32, ())
        return {name: made[name] for name in made if name not in stage.own}


def staged(program: Program, func: Func) -> Staged:
    """The stages of a function. Raises where it has not exactly one loop over layers at its top."""
    loops = [(at, s) for at, s in enumerate(func.body) if isinstance(s, Loop)]
    if len(loops) != 1:
        raise fault(
            "no-layers",
            f"{func.name} has {len(loops)} loops, and offloading goes by the trips of one loop over layers",
            func.span,
        )
    at, loop = loops[0]
    before, after = func.body[:at], func.body[at + 1 :]
    body = fused_attention(loop.body, program)
    read = {*names_used(loop.body), *loop.following}
    later = {*names_used(after), *func.returns}
    made = {v.name for s in before for v in s.results} | {p.name for p in func.params}
    gives = tuple(sorted(made & (read | later)))
    weights = [v.name for v in program.weights]
    stages = [Stage(0, None, before, (), gives, _weights(weights, before))]
    n = program.sizes(func)[loop.dim]
    inner = _weights(weights, loop.body)
    stages.extend(Stage(layer + 1, layer, body, gives, (), inner) for layer in range(n))
    stages.append(Stage(n + 1, None, after, gives, func.returns, _weights(weights, after)))
    return Staged(program, func, loop, tuple(stages))


def without(shape: Shape, dim: str) -> Shape:
    """What one trip of a loop over `dim` sees of a value of this shape."""
    return Shape(shape.dtype, tuple(each for each in shape.dims if each.name != dim))


def _weights(names: Sequence[str], body: Sequence[Statement]) -> tuple[str, ...]:
    read = names_used(body)
    return tuple(name for name in names if name in read)


def fused_attention(body: Sequence[Statement], program: Program) -> tuple[Statement | Attend, ...]:
    """The body with attention over cached state as one statement. Raises where state is used in another way."""
    lets = {v.name: s for s in body if isinstance(s, Let) for v in s.results}
    sets = {s.state: s for s in body if isinstance(s, SetState)}

    def root(name: str) -> str:
        """The value behind fetches, stores and other names for it."""
        while name in lets and isinstance(lets[name].operation, ops.Fetch | ops.Store | ops.Alias):
            name = str(lets[name].operands[0])
        return name

    layered = {name for name in program.state_names if len(program.globals[name].shape.dims) > 1}
    over = [s for s in body if isinstance(s, Let) and isinstance(s.operation, ops.Attend)]
    over = [s for s in over if layered & {root(str(operand)) for operand in s.operands[1:3]}]
    if not over:
        if layered & names_used(body):
            raise _unknown()
        return tuple(body)
    attend, updates = _over_cache(over[-1], lets, sets, program, root)
    gone = {v.name for let in updates for v in let.results} | {attend.keys, attend.values}
    made: list[Statement | Attend] = []
    for statement in body:
        if statement is over[-1]:
            made.append(attend)
        elif statement not in (*updates, sets[attend.keys], sets[attend.values]) and not _moves(statement, gone, root):
            made.append(statement)
    if names_used(s for s in made if not isinstance(s, Attend)) & gone:
        raise _unknown()
    return tuple(made)


def _moves(statement: Statement, names: set[str], root: Callable[[str], str]) -> bool:
    """Whether it only moves, or names anew, one of these."""
    if not isinstance(statement, Let) or not isinstance(statement.operation, ops.Fetch | ops.Store | ops.Alias):
        return False
    return root(str(statement.operands[0])) in names


def _unknown() -> Exception:
    return fault(
        "unknown-attention",
        "a layer uses its cache in a way that is not the known one: keys and values updated at the position, then"
        " attend[T, D, causal=L](q, k, v, pos=position)",
    )


def _over_cache(
    let: Let,
    lets: Mapping[str, Let],
    sets: Mapping[str, SetState],
    program: Program,
    root: Callable[[str], str],
) -> tuple[Attend, list[Let]]:
    """Attention over state that is updated at the position, and these updates; raises where it is another."""
    operation, states = let.operation, program.state_names
    assert isinstance(operation, ops.Attend)
    keys, values = (root(str(operand)) for operand in let.operands[1:3])
    position = str(let.operands[3]) if operation.given == ("pos",) else ""
    cached = {keys, values} <= states & set(sets) and position in states
    if not cached or operation.causal is None or operation.softcap or operation.lse:
        raise _unknown()
    updates = [lets.get(root(sets[state].operand)) for state in (keys, values)]
    known: list[Let] = []
    for state, update in zip((keys, values), updates, strict=True):
        if update is None or not isinstance(update.operation, ops.Update) or root(str(update.operands[0])) != state:
            raise _unknown()
        if str(update.operands[2]) != position or update.operation.wrap:
            raise _unknown()
        known.append(update)
    (batch,) = program.globals[position].shape.names
    size, layout = operation.contracted, program.globals[keys].shape.names
    if size not in program.globals[values].shape.names:
        raise _unknown()
    heads = tuple(name for name in layout[1:] if name not in (batch, operation.along, size))
    new = [str(update.operands[1]) for update in known]
    made = Attend(
        let.result, str(let.operands[0]), new[0], new[1], position, keys, values, operation.scale, operation.window,
        batch, operation.causal, heads, size,
    )  # fmt: skip
    return made, known
