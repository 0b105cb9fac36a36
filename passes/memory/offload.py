"""`offload`: what lives on host or disk is fetched just before it is used, and stored after it is computed."""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import ClassVar

from shardwright.ir.diagnostics import NOWHERE, fault
from shardwright.ir.ops import Alias, Attend, Fetch, Start, Store, Take, Update, Wait
from shardwright.ir.program import Carry, Func, Let, Loop, Marking, Program, Scope, SetState, Statement, Value
from shardwright.ir.rewriter import Rewriter
from shardwright.ir.types import ON_DEVICE, ON_HOST, Placement, ValueType
from shardwright.ir.walk import program_values
from shardwright.passes.base import Pass
from shardwright.passes.memory.host_attention import attending_on_host


@dataclass(frozen=True)
class Offload(Pass):
    """Values whose types say that they live elsewhere become explicit movements to the device and back.

        weights { w: f32 NEF on device 20% host 80% along F }
        state { k: f32 NBE on disk }

        y: BE = loop[N](h: BE on host = x) {
          set k = k + h
          ...  h @ w ...
          next g
        }

    becomes

        x_stored: BE on host = store[host](x)
        y: BE on host = loop[N](h: BE on host = x_stored) {
          k_here: BE = fetch(k)
          h_here: BE = fetch(h)
          k_next: BE = k_here + h_here
          k_stored: BE on disk = store[disk](k_next)
          set k = k_stored
          w_here: EF = fetch(w)
          ...  h_here @ w_here ...
          g_stored: BE on host = store[host](g)
          next g_stored
        }

    A fetch stands in the innermost loop that uses the value, just before its first use there, and serves all uses in
    that block until the value is set anew, or a loop comes between. What goes to several memories is stored by a demand
    for its type, since `store` names one. When each movement happens, beside which computation, is the schedule's to
    say (docs/concepts/offloading.md). Raises where state that is shared along a loop's dimension is set in
    that loop.

    Attention over a cache that lies on the host is computed there where its result is written to lie there,
    `o: BLHD on host = attend[T, D](q, k, v)`, and with `attention=host` wherever queries have one position, as in
    decode: its queries and the cache's new rows are stored, and its result is fetched.
    """

    name: ClassVar[str] = "offload"
    attention: str = "device"

    def run(self, program: Program) -> Program:
        if self.attention not in ("device", "host"):
            raise fault("bad-option", f"offload: attention is device or host, not {self.attention}", NOWHERE)
        check_placed(program)
        made = [attending_on_host(program, func, always=self.attention == "host") for func in program.funcs]
        return replace(program, funcs=tuple(_offloaded(program, func, there) for func, there in made))


def check_placed(program: Program) -> None:
    """Raises where a placement is left open, which a policy fills."""
    for _, value in program_values(program):
        if value.type.placement is None:
            raise fault(
                "open-type",
                f"{value.name}: {value.type} leaves its placement open",
                value.span,
                "write it, or have it filled: run choose-memories before (weights and state), or on one device"
                " shardwright offload FILE --machine NAME --plan-only -o OUT.shard",
            )


def _offloaded(program: Program, func: Func, there: frozenset[str]) -> Func:
    writer = _Writer(Rewriter.of(program, func), there)
    scope = Scope.of(program, func)
    body = list(writer.block(func.body, scope))
    returns: list[str] = []
    for name, wanted in zip(func.returns, func.results, strict=True):
        home = _home(scope.type_of(name))
        returns.append(writer.fetched(name, scope, body, {}) if _home(wanted) != home else name)
    return replace(func, body=tuple(body), returns=tuple(returns))


def _check_slice(statement: SetState, scope: Scope) -> None:
    """Raises where a slice of state is set that lies in one memory or in another, by the trip."""
    kind, (whole, _) = scope.type_of(statement.state), scope.values[statement.state]
    along = kind.placement.along if kind.placement is not None else None
    if along is not None and along not in kind.names:
        raise fault(
            "bad-placement",
            f"{statement.state}: {whole} is set in a loop over {along}, where a slice is in one memory or in another by"
            " its index",
            statement.span,
            f"share it along a dimension other than {along}",
        )


def _home(kind: ValueType) -> Placement:
    return kind.placement or ON_DEVICE


def _stay(statement: Let, scope: Scope) -> int:
    """How many operands are read where they lie, since it is done there: one index of what lies there, rows written
    that are there already, or attention on the host; 0 where it is done on the device. Others are fetched."""
    match statement.operation:
        case Take(stop=None):
            read = 1
        case Update():
            read = 2
        case Attend():
            read = 3
        case _:
            return 0
    kinds = [scope.type_of(operand) for operand in statement.operands[:read] if isinstance(operand, str)]
    homes = {_home(kind) for kind in kinds}
    if len(kinds) < read or len(homes) > 1 or homes == {ON_DEVICE}:
        return 0
    kept = statement.operation.lies(_home(kinds[0]), kinds[0].shape, statement.result.shape)
    return read if kept == _home(statement.result.type) else 0


@dataclass
class _Writer:
    """Writes one function, in which the values `there` are made on the host."""

    writer: Rewriter
    there: frozenset[str]

    def block(self, body: tuple[Statement, ...], scope: Scope) -> list[Statement]:
        """The statements with movements between them; what they define is defined in `scope`."""
        made: list[Statement] = []
        here: dict[str, str] = {}
        for statement in body:
            match statement:
                case Let(operation=Fetch() | Store() | Start() | Wait()):
                    made.append(statement)
                case Let():
                    made.extend(self.let(statement, scope, made, here))
                case SetState():
                    _check_slice(statement, scope)
                    operand = self.stored(statement.operand, scope, scope.type_of(statement.state), made)
                    made.append(replace(statement, operand=operand))
                    here.pop(statement.state, None)
                case Loop():
                    made.append(self.loop(statement, scope, made))
                    here.clear()  # what is fetched before a loop does not stay on the device while it runs
                case _:
                    made.append(statement)
            for value in made[-1].results if isinstance(made[-1], Loop) else statement.results:
                scope.define(value)
        return made

    def let(self, statement: Let, scope: Scope, made: list[Statement], here: dict[str, str]) -> list[Statement]:
        if isinstance(statement.operation, Alias):  # itself a change of home, where its result has another one
            name = str(statement.operands[0])
            kind, wanted = scope.type_of(name), statement.result.type
            if _home(wanted) == _home(kind) or _home(wanted) != ON_DEVICE:
                return [statement]
            if replace(kind, placement=wanted.placement) == wanted:
                return [replace(statement, operation=Fetch())]
            # Another layout is demanded, and a fetch changes none: what is fetched is resharded.
            return [replace(statement, operands=(self.fetched(name, scope, made, here),))]
        statement = self.brought(statement, scope, made)
        stay = _stay(statement, scope)
        operands = tuple(
            self.fetched(operand, scope, made, here) if isinstance(operand, str) and number >= stay else operand
            for number, operand in enumerate(statement.operands)
        )
        if stay:
            return [replace(statement, operands=operands)]
        made.append(replace(statement, operands=operands))
        return self.results_stored(made, scope)

    def brought(self, statement: Let, scope: Scope, made: list[Statement]) -> Let:
        """A statement with its new rows or queries on the host, where it is made there."""
        if statement.results[0].name not in self.there or not isinstance(statement.operation, Attend | Update):
            return statement
        at = 1 if isinstance(statement.operation, Update) else 0
        name = str(statement.operands[at])
        stored = self.stored(name, scope, replace(scope.type_of(name), placement=ON_HOST), made)
        return replace(statement, operands=(*statement.operands[:at], stored, *statement.operands[at + 1 :]))

    def results_stored(self, made: list[Statement], scope: Scope) -> list[Statement]:
        """Stores results, which are on the device first: the last statement, and a store for each result that lives
        elsewhere."""
        statement = made.pop()
        assert isinstance(statement, Let)
        computed: list[Value] = []
        stores: list[Statement] = []
        for value in statement.results:
            home = _home(value.type)
            if home == ON_DEVICE:
                computed.append(value)
                continue
            kind = replace(value.type, placement=ON_DEVICE)
            raw = self.writer.like(value, f"{value.name}_raw", kind, Marking.FOUND)
            computed.append(raw)
            operation = Alias() if home.tier is None else Store(home.tier)
            stored = value if home.tier is not None else replace(value, marking=Marking.DEMANDED)
            stores.append(Let((stored,), operation, (raw.name,), statement.span))
        made_first = replace(statement, results=tuple(computed))
        for value in (*computed, *(v for s in stores if isinstance(s, Let) for v in s.results)):
            scope.define(value)
        return [made_first, *stores]

    def fetched(self, name: str, scope: Scope, made: list[Statement], here: dict[str, str]) -> str:
        """The value on the device, as this block knows it."""
        kind = scope.type_of(name)
        if _home(kind) == ON_DEVICE:
            return name
        if name not in here:
            value = self.writer.value(f"{name}_here", replace(kind, placement=ON_DEVICE), source=name)
            made.append(Let((value,), Fetch(), (name,)))
            scope.define(value)
            here[name] = value.name
        return here[name]

    def stored(self, name: str, scope: Scope, wanted: ValueType, made: list[Statement]) -> str:
        """The value where the type wants it."""
        kind, home = scope.type_of(name), _home(wanted)
        if _home(kind) == home:
            return name
        if _home(kind) != ON_DEVICE:
            name = self.fetched(name, scope, made, {})
            if home == ON_DEVICE:
                return name
        operation = Store(home.tier) if home.tier is not None else Alias()
        marking = Marking.FOUND if home.tier is not None else Marking.DEMANDED
        value = self.writer.value(f"{name}_stored", replace(kind, placement=home), marking, source=name)
        made.append(Let((value,), operation, (name,)))
        scope.define(value)
        return value.name

    def loop(self, loop: Loop, scope: Scope, made: list[Statement]) -> Loop:
        carries = tuple(
            Carry(carry.value, self.stored(carry.initial, scope, carry.value.type, made)) for carry in loop.carries
        )
        inside = scope.inside(replace(loop, carries=carries))
        body = self.block(loop.body, inside)
        following = tuple(
            self.stored(name, inside, carry.value.type, body)
            for name, carry in zip(loop.following, loop.carries, strict=True)
        )
        results = tuple(
            replace(result, type=replace(result.type, placement=carry.value.type.placement))
            for result, carry in zip(loop.results, loop.carries, strict=True)
        )
        return replace(loop, carries=carries, body=tuple(body), following=following, results=results)
