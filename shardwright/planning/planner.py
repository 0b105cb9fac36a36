"""`plan`: how to serve a model on chips: batches, layouts searched for them, and what limits.

A deployment prefills some prompts at a time into a cache of their own, copies it to free rows of decode's, and decodes
all rows together. Its program has these as functions, `prefill`, `adopt` and `decode`, over weights stored once.
"""

from __future__ import annotations

import math
import time
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import get_args

from shardwright.cost.choosing.objective import Objective
from shardwright.cost.hardware.chips import Chip, load_chip
from shardwright.cost.hardware.networks import Torus
from shardwright.cost.programs.memory import MemoryUse
from shardwright.cost.programs.program_cost import Cost
from shardwright.ir.diagnostics import NOWHERE, DiagnosticError, Source, fault, located
from shardwright.ir.mesh import Mesh
from shardwright.ir.program import Program
from shardwright.ir.settings import require_count, require_limit, require_word
from shardwright.ir.text.table import bytes_text, counted
from shardwright.models.token_groups import ExpertsForm
from shardwright.passes.compiling.choosing import search
from shardwright.passes.compiling.found import SearchResult, TooLargeError
from shardwright.planning.serving import (
    ServingChoice,
    ServingDemand,
    ServingPlan,
    calls_of_a_round,
    limit,
    serving_program,
)
from shardwright.prediction.fitting import n_chips_of, weight_bytes
from shardwright.prediction.models import check_generation, model_of, torus_mesh
from shardwright.prediction.programs import Weights
from shardwright.searching.rewriting import WITHOUT_LAYOUTS

_EMPHASIS = 16.0
"""How many times a phase counts whose demand is not met: layouts that favour it are looked for."""

_GAIN = 1.01
"""A plan is better with so many times the tokens per second."""

_MOST_MESHES = 4

_LEAST_SECONDS = 0.5
"""For one search, however little is left: it has layouts then, and no proof."""

_MOST_TOKENS = 1 << 15
"""A prefill has no more tokens, unless one prompt has: all products are bound by their arithmetic long before."""


def plan(
    model: str, chip: Chip | str, chips: int, prompt: int, output: int, *,
    ttft: float | None = None, tpot: float | None = None, weights: Weights = "bf16", batch: int | None = None,
    seconds: float = 120.0, experts: ExpertsForm = "routed", expert_capacity: float | None = None,
) -> ServingPlan:  # fmt: skip
    """The way to serve a model with the most tokens a second on so many chips, with every layout searched.

    `model` is a built-in name, a config.json or a folder with one; `chip` may also be a name or a chip file's path;
    `ttft` and `tpot` are in seconds. Tokens meet the `experts` that they choose, or all if `replicated`, or are sent to
    them if `all-to-all`, of which each may take `expert_capacity` times its even share. Searches end after about so
    many `seconds`, with what they have. Raises a `DiagnosticError` where a demand cannot be met, which says what it
    takes, and which chips or weights would do.
    """
    for name, count in (("chips", chips), ("prompt", prompt), ("output", output), ("batch", batch)):
        require_count(name, count)
    for name, most in (("ttft", ttft), ("tpot", tpot), ("seconds", seconds)):
        require_limit(name, most)
    require_word("weights", weights, get_args(Weights))
    require_word("experts", experts, get_args(ExpertsForm))
    with located(Source(model, "")):
        found = model_of(model)
        check_generation(found.model, prompt, output)
    chip = load_chip(chip) if isinstance(chip, str) else chip
    demand = ServingDemand(found, chip, chips, prompt, output, ttft, tpot, weights, batch, experts, expert_capacity)
    with located(Source("--chips", "")):
        meshes = list(plan_meshes(chip, chips, found.model.attention.kv_heads))
    return _Planner(demand, meshes, seconds).plan()


def plan_meshes(chip: Chip, n_chips: int, kv_heads: int) -> Iterator[Mesh]:
    """The meshes that are tried: slices of a torus, compact ones first; on a switched network all chips as one axis,
    and two, of which one is a node, or as many chips as there are heads of keys, or the even part of all, or 2 or 4."""
    made = [torus_mesh(chip, n_chips, kv_heads)]
    if isinstance(chip.interconnect, Torus):
        made += [Mesh(tuple(zip("xyz", shape, strict=False))) for shape in chip.interconnect.slices_of(n_chips)]
    else:
        inside = chip.interconnect.levels[0].units or n_chips
        made += [Mesh.of(x=n_chips)]
        sides = (inside, n_chips // odd_part(n_chips), 2, 4)
        made += [Mesh.of(x=n_chips // y, y=y) for y in sides if y < n_chips and n_chips % y == 0]
    alike = {tuple(sorted(size for _, size in mesh.items() if size > 1)): mesh for mesh in reversed(made)}
    first = made[0]
    yield first
    yield from [mesh for mesh in reversed(alike.values()) if mesh != first][: _MOST_MESHES - 1]


_Key = tuple[Mesh, int, int]


@dataclass
class _Planner:
    """Looks for the best way to serve: how many rows by each phase alone, then layouts for both together. `known` has
    what was found for a mesh, rows of decode and of prefill, `alone` what was found for a phase and its rows.

    Weights that lie as decode alone has them make of both phases two small searches, and so a first answer, which the
    search with all layouts open has to better in the time that is left.
    """

    demand: ServingDemand
    meshes: Sequence[Mesh]
    seconds: float
    known: dict[_Key, ServingChoice | DiagnosticError] = field(
        default_factory=dict["_Key", "ServingChoice | DiagnosticError"]
    )
    alone: dict[tuple[str, int], SearchResult | DiagnosticError] = field(
        default_factory=dict[tuple[str, int], "SearchResult | DiagnosticError"]
    )
    began: float = field(default_factory=time.monotonic)

    def plan(self) -> ServingPlan:
        self._begin_where_it_fits()
        best = first = self._first(self.meshes[0])
        for mesh in self.meshes[1:]:
            if self._left() > 0:
                best = max(best, self.at(mesh, first.batch, first.prompts) or best, key=_worth)
        found = best
        for prompts in (min(2 * found.prompts, found.batch), halved(found.prompts)):  # the first are rounded down
            if best is found and (self._left() > 0 or self._next(best) is None):
                best = max(best, self.at(found.mesh, found.batch, prompts) or best, key=_worth)
        best = self._settled(best)
        return ServingPlan(best, self._binding(best), self._next(best))

    def _begin_where_it_fits(self) -> None:
        """Puts first the mesh on which decode of the fewest rows fits, or lacks least where it fits on none."""
        if weight_bytes(self.demand.model.model, self.demand.weights) > self._room:
            return
        peaks: list[float] = []
        for n, mesh in enumerate(meshes := self.meshes):
            self.meshes = [mesh, *meshes[:n], *meshes[n + 1 :]]
            for rows in (self.demand.batch or self._rows_with_room(), self.demand.batch or 1):
                found = self._alone("decode", rows)
                if not isinstance(found, TooLargeError):
                    return
            peaks.append(found.memory.peak)
            self.alone.clear()
        least = peaks.index(min(peaks))
        self.meshes = [meshes[least], *meshes[:least], *meshes[least + 1 :]]

    def _first(self, mesh: Mesh) -> ServingChoice:
        """The first that meets the demands, of the rows that are best by each phase alone, and fewer. Raises where none
        does."""
        batch = self.demand.batch or self._rows()
        for phase, rows in (("decode", batch), ("prefill", 1)):
            if (lacking := self._lacking(phase, rows)) is not None:
                raise self._impossible(lacking, batch, self._costs(phase, rows))
        prompts = self._prompts(batch)
        while True:
            made, lacking = self._looked_at(mesh, batch, prompts)
            if isinstance(made, ServingChoice) and lacking is None:
                return made
            fewer = self._fewer(batch) if self.demand.batch is None else 0
            if prompts > 1 and (lacking == "ttft" or not fewer):
                prompts = halved(prompts)
            elif fewer and lacking != "ttft":
                batch, prompts = fewer, math.gcd(fewer, prompts)
            else:
                raise self._impossible(lacking, batch, made if isinstance(made, DiagnosticError) else made.costs)

    # ------------------------------------------------------------ one phase alone

    def _rows(self) -> int:
        """The rows of decode with the most tokens a second, as `_even` has them or one and a half or a quarter times
        such; one where no more meet the demands."""
        first = self._rows_with_room()
        while first > 1 and self._lacking("decode", first) is not None:
            first = halved(first)
        if self._lacking("decode", first) or self._lacking("prefill", 1):
            return first
        best, prompts = first, self._prompts(first)
        for part in (1, 2, 4):
            more = best + best // part if part == 1 else best + first // part
            while (
                more > best
                and self._left() > self.seconds / 2  # the rest is for both phases together
                and self._lacking("decode", more) is None
                and self._pace(more, prompts) > _GAIN * self._pace(best, prompts)
            ):
                best, more = more, 2 * more if part == 1 else more
            first = best if part == 1 else first
        return best

    @property
    def _odd(self) -> int:
        return odd_part(self.demand.n_chips)

    @property
    def _room(self) -> float:
        """The bytes of memory of all chips."""
        return self.demand.n_chips * self.demand.chip.memory_bytes

    def _even(self, most: float) -> int:
        """The most rows up to so many that lie evenly on the chips: a power of two times the odd part of their number.
        A power of two where not even one for each of that part may be; at least one."""
        most = max(1, int(most))
        unit = self._odd if self._odd <= most else 1
        return unit << (most // unit).bit_length() - 1

    def _rows_with_room(self) -> int:
        """The rows, as `_even` has them, whose cache takes at most half of what the weights leave of the memory where
        all is split over all chips."""
        demand, model = self.demand, self.demand.model.model
        room = self._room - weight_bytes(model, demand.weights)
        row = 4 * model.layers * model.attention.kv_heads * model.attention.head_dim * demand.positions
        return self._even(min(room / (2 * row), 1024.0))

    def _fewer(self, batch: int) -> int:
        """Three quarters of as many rows as `_even` has, then two, then one; 0 where there are no fewer."""
        unit = batch // self._odd if batch % self._odd == 0 else batch
        if unit % 4 == 0 and unit & (unit - 1) == 0:
            return batch * 3 // 4
        return batch * 2 // 3 if unit % 3 == 0 else halved(batch) if batch > 1 else 0

    def _prompts(self, batch: int) -> int:
        """The rows of prefill, as `_even` has them: as many as are done in the time that is asked for, a quarter of all
        where it divides them, else a sixteenth at least, and of so many tokens as `_MOST_TOKENS`."""
        first, most = self._cost("prefill", 1).time_s, self.demand.ttft_s
        rows = max(math.gcd(batch, self._odd << 20) // 4, batch // 16)
        timely = rows if most is None or not first else 2 * most / first
        rows = self._even(min(rows, timely, _MOST_TOKENS / self.demand.prompt))
        while self._lacking("prefill", rows) is not None:
            rows = halved(rows)
        return rows

    def _pace(self, batch: int, prompts: int) -> float:
        """Tokens a second, of each phase as it is alone."""
        calls = calls_of_a_round(batch, prompts, self.demand.output)
        filling = calls["prefill"] * self._cost("prefill", prompts).time_s
        return batch * self.demand.output / (filling + calls["decode"] * self._cost("decode", batch).time_s)

    def _lacking(self, phase: str, rows: int) -> str | None:
        found = self._costs(phase, rows)
        if isinstance(found, DiagnosticError):
            return "memory"
        cost = found[phase]
        name, most = ("ttft", self.demand.ttft_s) if phase == "prefill" else ("tpot", self.demand.tpot_s)
        return name if most is not None and cost.time_s > most else None

    def _costs(self, phase: str, rows: int) -> dict[str, Cost] | DiagnosticError:
        found = self._alone(phase, rows)
        return found if isinstance(found, DiagnosticError) else {phase: found.costs[0]}

    def _cost(self, phase: str, rows: int) -> Cost:
        found = self._alone(phase, rows)
        assert not isinstance(found, DiagnosticError)
        return found.costs[0]

    def _alone(self, phase: str, rows: int) -> SearchResult | DiagnosticError:
        """The layouts of a phase with weights stored for it alone; where none are found, why."""
        key = phase, rows
        if key not in self.alone:
            program = serving_program(self.demand, self.meshes[0], rows, phase=phase)
            self.alone[key] = self._found(program, {}, self._share(10))
        return self.alone[key]

    # ------------------------------------------------------------ both together

    def at(self, mesh: Mesh, batch: int, prompts: int) -> ServingChoice | None:
        """The best found for a mesh and rows that meets every demand, None where there is none."""
        served, lacking = self._looked_at(mesh, batch, prompts)
        return served if isinstance(served, ServingChoice) and lacking is None else None

    def _looked_at(self, mesh: Mesh, batch: int, prompts: int) -> tuple[ServingChoice | DiagnosticError, str | None]:
        """The plan that was found, and the demand that it does not meet."""
        key = mesh, batch, prompts
        if key not in self.known:
            self.known[key] = self._searched(*key, self._share(4))
        made = self.known[key]
        return made, "memory" if isinstance(made, DiagnosticError) else made.lacking()

    def _searched(self, mesh: Mesh, batch: int, prompts: int, seconds: float) -> ServingChoice | DiagnosticError:
        """The best found for so many rows, on this mesh or else on the first one."""
        demand = self.demand
        program = serving_program(demand, mesh, batch, prompts)
        round_calls = calls_of_a_round(batch, prompts, demand.output)
        calls = {func: max(1.0, count) for func, count in round_calls.items()}  # a step is looked for, taken or not
        counted, bound = calls, math.inf
        while True:
            if mesh == self.meshes[0]:
                known = self._found(self._stored_for_decode(program, batch), counted, seconds)
            else:
                known = self._on_first_mesh(batch, prompts, counted)
            given = known if isinstance(known, SearchResult) else None
            found = given if given and self._left() <= 0 else self._found(program, counted, seconds, given)
            if isinstance(found, DiagnosticError):
                return found
            # What is told is of the calls that there are, whatever they counted for; and so is the first bound alone.
            bound = found.bound_s if counted is calls else bound
            found = found.but(objective=replace(found.objective, calls=calls), bound_s=bound)
            made = ServingChoice(demand, found.placed.mesh, batch, prompts, found)
            phase = {"ttft": "prefill", "tpot": "decode"}.get(made.lacking() or "")
            if phase is None or counted is not calls:
                return made
            counted = calls | {phase: _EMPHASIS * calls[phase]}

    def _on_first_mesh(self, batch: int, prompts: int, calls: dict[str, float]) -> SearchResult | None:
        known = self.known.get((self.meshes[0], batch, prompts))
        if not isinstance(known, ServingChoice):
            return None
        return known.found.but(objective=replace(known.found.objective, calls=calls))

    def _stored_for_decode(self, program: Program, batch: int) -> Program:
        """The program whose weights lie as the layouts of decode alone have them, of rows nearest to so many."""
        alone = {rows: made for (phase, rows), made in self.alone.items() if phase == "decode"}
        found = {rows: made.program for rows, made in alone.items() if isinstance(made, SearchResult)}
        if not found:
            return program
        stored = found[min(found, key=lambda rows: abs(rows - batch))].globals
        weights = (
            replace(value, type=replace(stored[value.name].type, dtype=value.type.dtype)) for value in program.weights
        )
        return replace(program, weights=tuple(weights))

    def _found(
        self, program: Program, calls: dict[str, float], seconds: float, known: SearchResult | None = None
    ) -> SearchResult | DiagnosticError:
        chip = self.demand.chip
        try:
            return search(program, Objective(chip, chip.constants, calls), seconds, known=known)
        except DiagnosticError as error:
            if error.diagnostics[0].code not in WITHOUT_LAYOUTS:
                raise
            return error

    def _share(self, parts: int) -> float:
        """Seconds for one search."""
        return max(_LEAST_SECONDS, self._left() / parts)

    def _left(self) -> float:
        return self.seconds - (time.monotonic() - self.began)

    def _settled(self, best: ServingChoice) -> ServingChoice:
        """The same again with the time that is left, where its layouts are not proved."""
        key = best.mesh, best.batch, best.prompts
        if best.found.status == "optimal" or self._left() <= 0:
            return best
        again = self._searched(*key, self._left())
        if isinstance(again, ServingChoice) and again.lacking() is None and _worth(again) > _worth(best):
            self.known[key] = best = again
        return best

    # ------------------------------------------------------------ what is told

    def _binding(self, best: ServingChoice) -> str:
        """The binding limit: what the next more rows lack; where they lack nothing, what bounds a step of decode."""
        if self.demand.batch is not None:
            return "batch"
        looked = [(key[1], self._looked_at(*key)[1]) for key in self.known]
        looked += [(rows, self._lacking("decode", rows)) for phase, rows in self.alone if phase == "decode"]
        more = min((rows for rows, _ in looked if rows > best.batch), default=None)
        lacking = next((lacking for rows, lacking in looked if rows == more and lacking is not None), None)
        bound = limit(best.costs["decode"])[0]
        return lacking or ("memory-bandwidth" if bound == "memory" else bound)

    def _next(self, best: ServingChoice) -> ServingChoice | None:
        """The best of another mesh; where there is none, of other batches."""
        found = [one for key in self.known if (one := self.at(*key)) is not None and one.mesh == key[0]]
        others = [one for one in found if one is not best]
        elsewhere = [one for one in others if one.mesh != best.mesh]
        return max(elsewhere or others, key=_worth, default=None)

    def _impossible(
        self, lacking: str | None, batch: int, found: Mapping[str, Cost] | DiagnosticError
    ) -> DiagnosticError:
        """Why not even so many rows can be served, and what would lift it."""
        demand = self.demand
        name, chips = demand.model.name, f"{demand.n_chips} {demand.chip.name}"
        lighter = [] if demand.weights != "bf16" else ["--weights int8 halves what the weights take"]
        if isinstance(found, DiagnosticError):
            return fault(
                "does-not-fit",
                f"{name} does not fit on {chips} with {counted(batch, 'sequence')} of {demand.positions}"
                f" positions: {found.diagnostics[0].message}",
                NOWHERE,
                *self._lifts(found.memory if isinstance(found, TooLargeError) else None, lighter),
            )
        phase, rows, cost, asked = (
            ("time to first token", counted(1, "prompt"), found["prefill"], demand.ttft_s)
            if lacking == "ttft"
            else ("time per output token", counted(batch, "sequence"), found["decode"], demand.tpot_s)
        )
        assert asked is not None
        parts = {
            "arithmetic": cost.compute_s,
            "reading memory": cost.memory_s,
            "links between chips": cost.exposed_communication_s,
        }
        most = max(parts, key=lambda part: parts[part])
        ways = {
            "arithmetic": "more chips or faster ones" + (", or a shorter --prompt" if lacking == "ttft" else ""),
            "reading memory": "more chips, or chips with faster memory",
            "links between chips": "faster links, or fewer chips",
        }
        return fault(
            "cannot-meet",
            f"the {phase} of {name} on {chips} is {cost.time_s:.3g} s for {rows}, and {asked:g} s is asked for; {most}"
            f" alone takes {parts[most]:.3g} s",
            NOWHERE,
            f"it takes {ways[most]}",
            *(lighter if most == "reading memory" else []),
            f"or ask for --{lacking} {rounded_up(cost.time_s * 1.01)}",
        )

    def _lifts(self, memory: MemoryUse | None, lighter: Sequence[str]) -> Iterator[str]:
        """Ways to make it fit: of weights that alone take too much other chips, else caches that are smaller; and
        weights in fewer bits where they are enough."""
        demand, room = self.demand, self.demand.chip.memory_bytes
        nbytes = weight_bytes(demand.model.model, demand.weights)
        enough = next((n for n in n_chips_of(demand.chip) if n * room > 1.1 * nbytes and n != demand.n_chips), None)
        if nbytes > self._room:
            alone = f"its weights alone take {bytes_text(nbytes)}"
            most = max(n_chips_of(demand.chip))
            yield (
                f"{alone}, and the most of these chips, {most}, have {bytes_text(most * room)}: take larger ones"
                if enough is None
                else f"its weights alone want {enough} of these chips"
            )
        elif memory is not None and memory.weights > room:
            held = f"a chip would hold {bytes_text(memory.weights)} of weights"
            held = f"{held}, since its sizes divide over few chips alone"
            yield held if enough is None else f"{held}; {enough} chips may do"
        else:
            fewer = "" if demand.batch is None else ", or a smaller --batch"
            yield f"caches are smaller with a shorter --prompt or --output{fewer}"
        if memory is None or memory.fits_in_int8(room):
            yield from lighter


def odd_part(count: int) -> int:
    """The largest odd number that divides it: 3 of 6 or 12, 1 of a power of two."""
    return count // (count & -count)


def halved(rows: int) -> int:
    """Half of so many rows; of an odd number the largest power of two below, or one."""
    return rows // 2 if rows % 2 == 0 else 1 << rows.bit_length() - 1


def rounded_up(seconds: float) -> str:
    """So many seconds or more, in two digits."""
    unit = 10.0 ** (math.floor(math.log10(seconds)) - 1)
    return f"{math.ceil(seconds / unit) * unit:.2g}"


def _worth(served: ServingChoice) -> float:
    return served.tokens_per_s
