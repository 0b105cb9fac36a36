"""A generation by a program with `prefill` and `decode`: one prefill, which gives the first token, then a step for
each further one as the cache grows."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

from shardwright.cost.movements.movement import duration_text
from shardwright.cost.programs.program_cost import Cost
from shardwright.cost.programs.resizing import resized
from shardwright.ir.diagnostics import NOWHERE, fault
from shardwright.ir.ops import Update
from shardwright.ir.ops.indexing import page_of_row
from shardwright.ir.program import Func, Let, Program
from shardwright.ir.text.table import counted
from shardwright.ir.walk import sites
from shardwright.models.description import decode_steps, positions_of
from shardwright.prediction.phases import step_contexts


@dataclass(frozen=True)
class GenerationCost:
    """Seconds of prefill and of all decode steps. `steps` are some of these, each with how many it stands for."""

    prefill: Cost
    steps: tuple[tuple[float, Cost], ...]

    @property
    def decode_s(self) -> float:
        return sum(count * step.time_s for count, step in self.steps)

    @property
    def step_s(self) -> float:
        """Seconds of a step on average, 0 where there is none."""
        return self.decode_s / (sum(count for count, _ in self.steps) or 1)

    @property
    def time_s(self) -> float:
        return self.prefill.time_s + self.decode_s

    def text(self, tokens: int) -> str:
        """The cost in words, of so many tokens."""
        prefill, decode = duration_text(self.prefill.time_s), duration_text(self.decode_s)
        step, together = duration_text(self.step_s), duration_text(self.time_s)
        asked = counted(tokens, "token")
        return f"generation of {asked}: prefill {prefill}, decode {decode} ({step} a step), together {together}"

    def as_json(self) -> dict[str, float]:
        return {"prefill_s": self.prefill.time_s, "decode_s": self.decode_s, "time_s": self.time_s}


def generation_cost(program: Program, price: Callable[[Program, Func], Cost], tokens: int) -> GenerationCost:
    """The cost of generating `tokens` for each sequence of an explicit program whose functions cost what `price` says,
    after a prefill of its own length into an empty cache: `attend` counts queries as the last of the positions, and a
    prompt's see none of what is generated.

    Raises where the program lacks `prefill` or `decode`, or no cache grows in decode.
    """
    names = [func.name for func in program.funcs]
    if not {"prefill", "decode"} <= set(names):
        raise fault(
            "no-phases",
            f"a generation needs functions prefill and decode; there are {', '.join(names)}",
            NOWHERE,
            "shardwright import writes both with --cache",
        )
    decode, prefill = program.func("decode"), program.func("prefill")
    growing = _growing(program, decode)
    if growing is None:
        raise fault("no-phases", "decode updates no cache, so nothing grows from token to token", NOWHERE)
    before = program.sizes(prefill).get("L", 1)
    steps: list[tuple[float, Cost]] = []
    for count, context in step_contexts(before, decode_steps(tokens)):
        sized = resized(program, growing(context))
        steps.append((count, price(sized, sized.func("decode"))))
    sized = resized(program, growing(before))
    return GenerationCost(price(sized, sized.func("prefill")), tuple(steps))


def beyond_cache(program: Program, tokens: int) -> dict[str, int]:
    """The sizes of a cache's dimension that `generation_cost` prices beyond the program's own."""
    decode = program.func("decode")
    growing = _growing(program, decode)
    before = program.sizes(program.func("prefill")).get("L", 1)
    sizes = {} if growing is None else growing(positions_of(before, tokens))
    return {dim: size for dim, size in sizes.items() if size > program.sizes(decode)[dim]}


def _growing(program: Program, func: Func) -> Callable[[int], dict[str, int]] | None:
    """The dimension that grows with the context, and how far: positions of a cache, or the pages of a row."""
    for site in sites(program, func):
        match site.statement:
            case Let(operation=Update(page=None) as update):
                return lambda context: {update.dim: context}
            case Let(operation=Update() as update, operands=(_, new, *_, table)):
                rows, of_table = (site.scope.type_of(str(name)).shape for name in (new, table))
                own, slots = page_of_row(of_table.names, rows), program.sizes(func)[update.dim]
                return lambda context: {own: -(-context // slots)}
            case _:
                pass
    return None
