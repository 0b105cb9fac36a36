"""Policies as programs: holes of placements filled by a policy, and the policy that a program's placements are.

`w: f16 NEF on ?` is a hole that the policy fills; so are caches and what the loop over layers carries. Of a program
that is planned, B are the rows of a block, and M, where it is declared and no value has it, the batches in it.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, fields, replace

from shardwright.cost.hardware.runtimes import Runtime
from shardwright.cost.offloading.policy import Policy, Shares
from shardwright.cost.offloading.pricing import OffloadSetting, PricedPolicy
from shardwright.cost.offloading.search import block_plans, improved
from shardwright.cost.offloading.sizes import Sizes, growing_loop, phases, sizes_of
from shardwright.ir.diagnostics import NOWHERE, fault
from shardwright.ir.elaboration.elaborate import elaborate
from shardwright.ir.ops import Attend
from shardwright.ir.placements import with_placements
from shardwright.ir.program import DimInfo, Loop, Program
from shardwright.ir.text.syntax import Module
from shardwright.ir.types import ON_DEVICE, ON_HOST, Placement, Tier, ValueType
from shardwright.ir.walk import lets_in
from shardwright.passes.memory.pages_to_rows import PagesToRows
from shardwright.serving.offloading.placing import placement_of, with_attention

BATCHES = "M"
"""The dimension that says how many batches a block has."""

_GROUPS = {"weights": "weights", "cache": "the cache", "hidden": "hidden states"}


@dataclass(frozen=True)
class Outline:
    """The parts of a program that a policy is about: the dimensions of its loop over layers, rows and positions, its
    lengths, and the types of its weights, of its cache, and of its hidden states."""

    layers: str
    batch: str
    positions: str
    prompt: int
    generated: int
    rows: int
    batches: int
    groups: Mapping[str, Mapping[str, ValueType]]

    @property
    def holes(self) -> tuple[str, ...]:
        """The groups that a policy is to fill something of."""
        return tuple(name for name, kinds in self.groups.items() if any(k.placement is None for k in kinds.values()))

    def shares(self, group: str) -> Shares:
        """How the bytes of a group lie on the tiers as it is written; holes count as on the device."""
        totals = dict.fromkeys(Tier, 0.0)
        for kind in self.groups[group].values():
            nbytes = kind.shape.elements * kind.dtype.bits / 8
            for tier, percent in (kind.placement or ON_DEVICE).shares:
                totals[tier] += nbytes * percent / 100
        whole = sum(totals.values()) or 1.0
        return Shares(*(totals[tier] / whole for tier in Tier))


def outline_of(program: Program) -> Outline:
    """Raises where the program has no functions prefill and decode with a cache that grows in a loop over layers."""
    prefill, decode = phases(program)
    loop, update = growing_loop(decode)
    positions = update.dim
    caches = {v.name: v.type for v in program.state if {loop.dim, positions} <= set(v.type.names)}
    if not caches:
        raise fault("no-phases", f"no state has both {loop.dim} and {positions}, as a cache does", decode.span)
    names = [name for name in next(iter(caches.values())).names if name not in {loop.dim, positions}]
    scheduled = BATCHES in names
    batch = names[1 if scheduled else 0]
    tokens = {value.name: value.shape for value in prefill.params}
    entering = tokens.get("prefill_ids")  # of the diagonal order, in which a prompt's length is a dimension of its own
    ids = tokens.get("ids") if entering is None else entering
    lengths = [name for name, _ in decode.overrides if ids is not None and name in ids]
    if entering is not None:
        lengths = [entering.names[-1]]
    if not lengths or ids is None:
        raise fault("no-phases", "decode gives no dimension of prefill's tokens another size, as in decode[L=1]",
                    decode.span)  # fmt: skip
    prompt, context = ids.size(lengths[0]), program.sizes()[positions]
    if context <= prompt:
        raise fault(
            "no-phases",
            f"the cache has {context} positions, no more than the {prompt} of a prompt",
            decode.span,
            f"give {positions} those of the new tokens, too",
        )
    weights = {value.name: value.type for value in program.weights}
    hidden = {
        f"{func.name}.{carry.value.name}": carry.value.type
        for func in program.funcs
        for statement, _ in func.walk()
        if isinstance(statement, Loop) and statement.dim == loop.dim
        for carry in statement.carries
        if batch in carry.value.type.names
    }
    if scheduled:  # what the layers carried is state
        hidden = {v.name: v.type for v in program.state if v.name not in caches and v.type.dtype.is_float}
    rows = program.sizes()[batch]
    if scheduled:
        rows *= program.sizes()[BATCHES]
    groups = {"weights": weights, "cache": caches, "hidden": hidden}
    return Outline(
        loop.dim, batch, positions, prompt, context - prompt, rows,
        program.sizes()[BATCHES] if scheduled else _batches(program, rows), groups,
    )  # fmt: skip


def _batches(program: Program, rows: int) -> int:
    declared = next((dim for dim in program.dims if dim.name == BATCHES), None)
    used = any(BATCHES in value.type.names for value in (*program.weights, *program.state))
    if declared is None or used:
        return 1
    if rows % declared.size:
        raise fault("bad-policy", f"{rows} rows cannot be divided into the {declared.size} batches of {BATCHES}",
                    declared.span)  # fmt: skip
    return declared.size


def sizes_in(module: Module, outline: Outline) -> Sizes:
    """The sizes of a program for one sequence, all of it on the device. Raises where it has more than one chip."""
    from shardwright.passes.pipelines import EXPLICIT, run_passes

    program = elaborate(module)
    if program.mesh.n_chips > 1:
        raise fault("several-chips", f"a policy is of one device, and the mesh is {program.mesh}", NOWHERE,
                    "leave the mesh out, or give --mesh with one chip along each axis")  # fmt: skip
    row = PagesToRows().run(elaborate(module, None, {outline.batch: 1}))
    one = with_placements(row, lambda _what, _kind: ON_DEVICE)
    return sizes_of(run_passes(one, EXPLICIT), outline.prompt, outline.generated)


# ---------------------------------------------------------------- the policy of a program


@dataclass(frozen=True)
class _Holding(Runtime):
    """A runtime that leaves what a program has placed where it is."""

    held: tuple[str, ...] = ()

    @property
    def movable(self) -> tuple[str, ...]:
        return tuple(name for name in super().movable if name not in self.held)


def planned(setting: OffloadSetting, outline: Outline) -> PricedPolicy:
    """The plan with the most tokens a second for a block of the program's rows, with what is written left as it is.

    Raises where none fits.
    """
    held = tuple(name for name in _GROUPS if name not in outline.holes)
    given = {item.name: getattr(setting.runtime, item.name) for item in fields(Runtime)}
    own = replace(setting, runtime=_Holding(**given, held=held))
    counts = [n for n in range(1, outline.rows + 1) if outline.rows % n == 0] if own.runtime.blocks else [1]
    plans: list[PricedPolicy] = []
    for count in counts:
        for on_host in own.attention_places:
            weights, cache, hidden = (outline.shares(name) for name in ("weights", "cache", "hidden"))
            policy = Policy(outline.rows // count, count, weights, cache, hidden, host_attention=on_host)
            fitting = block_plans(own, policy)
            plans += [improved(own, max(fitting, key=lambda plan: plan.tokens_per_s))] if fitting else []
    if not plans:
        raise fault(
            "does-not-fit",
            f"no placement lets a block of {outline.rows} sequences fit {setting.machine.name}",
            NOWHERE,
            f"give fewer rows: change {outline.batch}"
            + (", or leave more of the placements open" if len(outline.holes) < len(_GROUPS) else ""),
        )
    return max(plans, key=lambda plan: plan.tokens_per_s)


# ---------------------------------------------------------------- a policy in a program


def plan_text(plan: PricedPolicy, name: str, program: Program) -> str:
    """The text of a program with a plan's placements; a comment at its head says what plan that is."""
    policy = plan.policy
    lines = [
        f"{name} with the policy {policy} on {plan.setting.machine.name}: {plan.tokens_per_s:.4g} token/s.",
        "B are the rows of a block, M the batches in it.",
    ]
    return "".join(f"# {line}\n" for line in lines) + f"\n{program!r}"


def check_rows(policy: Policy, outline: Outline) -> Policy:
    """The policy, if its block is of the program's rows."""
    if policy.block != outline.rows:
        raise fault(
            "bad-policy",
            f"the policy {policy} has {policy.block} sequences in a block, and the program {outline.rows} rows",
            NOWHERE,
            "change B in the program, or the policy's batches",
        )
    return policy


def filled(program: Program, outline: Outline, policy: Policy) -> Program:
    """The program with its holes filled by the policy: weights along their first dimension but for that of layers,
    caches along their positions, hidden states along their rows; what else is open is on the device.

    `M` says how many batches the block has.
    """

    def place(what: str, kind: ValueType) -> Placement:
        if kind.placement is not None:
            return kind.placement
        if what in outline.groups["weights"]:
            return placement_of(policy.weights, next((d for d in kind.names if d != outline.layers), None))
        if what in outline.groups["cache"]:
            return placement_of(policy.cache, outline.positions)
        if outline.batch in kind.names:
            return placement_of(policy.hidden, outline.batch)
        return ON_DEVICE

    return with_batches(with_attention(with_placements(program, place), policy), policy.n_gpu_batches)


def with_batches(program: Program, count: int) -> Program:
    """The program with M declared as the number of batches in its block."""
    others = tuple(dim for dim in program.dims if dim.name != BATCHES)
    return replace(program, dims=(*others, DimInfo(BATCHES, count)))


def policy_in(program: Program) -> Policy:
    """The policy that a program's placements are; its rows a block. Where those of one group differ it has their
    mean, by bytes. Attention over a cache that lies whole on the host is computed there where the program says so; of
    any other it says nothing, and the policy is the paper's.

    Raises where a placement is left open.
    """
    program = PagesToRows().run(program)
    outline = outline_of(program)
    for kinds in outline.groups.values():
        for name, kind in kinds.items():
            if kind.placement is None:
                written = (value for value in (*program.weights, *program.state) if value.name == name)
                raise fault(
                    "bad-policy",
                    f"{name}: {kind} leaves its placement open",
                    next((value.span for value in written), NOWHERE),
                    "shardwright offload FILE --machine NAME --plan-only -o OUT.shard fills it",
                )
    shares: dict[str, Shares] = {}
    for group in outline.groups:
        mean = outline.shares(group)
        shares[group] = Shares(*(round(each, 9) for each in (mean.device, mean.host, mean.disk)))
    count = outline.batches
    attended = (let for func in program.funcs for let in lets_in(func.body) if isinstance(let.operation, Attend))
    on_host = any(let.results[0].type.placement == ON_HOST for let in attended) or shares["cache"].host < 1.0
    weights, cache, hidden = (shares[group] for group in outline.groups)
    return Policy(outline.rows // count, count, weights, cache, hidden, host_attention=on_host)
