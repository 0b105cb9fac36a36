"""The programs of a run: a model under a policy, scheduled for blocks of each size, or a program as it is written."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path

from shardwright.backends.simulation.digit_factors import Digits
from shardwright.backends.torch.homes import loop_dims
from shardwright.backends.torch.shards import sharded
from shardwright.cost.offloading.policy import Policy
from shardwright.cost.programs.resizing import resized
from shardwright.ir.diagnostics import NOWHERE, DiagnosticError, Source, fault, located
from shardwright.ir.digits import Order
from shardwright.ir.elaboration.elaborate import elaborate
from shardwright.ir.mesh import ONE_CHIP, Mesh
from shardwright.ir.program import Program
from shardwright.ir.text.parser import parse
from shardwright.ir.types import ON_DEVICE, Axes, DType, TensorType, Tier, row_text
from shardwright.ir.verification.completion import complete
from shardwright.ir.verification.verifier import Level, verify
from shardwright.models.config import config_path, read_config
from shardwright.models.description import Model
from shardwright.models.forward import ProgramRequest as ForwardRequest
from shardwright.models.forward import model_text
from shardwright.models.importing import ImportedModel, checkpoint_dtype
from shardwright.models.layouts import OPEN
from shardwright.models.weight_map import WeightMap, weight_map
from shardwright.passes.compiling.place import Place
from shardwright.passes.memory.offload import Offload
from shardwright.passes.memory.pages_to_rows import PagedUse, PagesToRows, paged_uses
from shardwright.passes.memory.schedule_blocks import ScheduleBlocks
from shardwright.passes.pipelines import EXPLICIT, explicit_passes, passes_for_weights, run_passes
from shardwright.passes.transformations.quantized_weights import Quantization
from shardwright.serving.generation.prompts import Prompt
from shardwright.serving.generation.sampling import sampling_functions
from shardwright.serving.generation.settings import GenerationSettings
from shardwright.serving.offloading.buckets import Bucket, buckets
from shardwright.serving.offloading.mesh_layouts import imported_on, with_layouts_of
from shardwright.serving.offloading.placing import placed
from shardwright.serving.offloading.policy_files import has_schedule
from shardwright.serving.offloading.program_parts import ALONE, ProcessPlace, part_of, scoring, with_hidden
from shardwright.serving.offloading.request import OffloadRequest
from shardwright.serving.offloading.stored_weights import recipe_of
from shardwright.serving.offloading.written_sizes import ARGUMENTS, BOTH, ENTERS, STAYS, WrittenSizes, has_phases


@dataclass(frozen=True)
class PromptBlock:
    """Batches of prompts that go through the layers together, each of `rows` rows padded to `length`, with `cache`
    positions; of what there are fewer prompts than that, the rest are rows of no prompt. In the diagonal schedule so
    many batches are `together` at a time."""

    buckets: tuple[Bucket, ...]
    rows: int
    length: int
    cache: int
    together: int

    def lengths_of(self, number: int) -> list[int]:
        own = [len(prompt.tokens) for prompt in self.buckets[number].prompts]
        return own + [1] * (self.rows - len(own))

    def ids_of(self, number: int) -> list[list[int]]:
        own = [[*p.tokens, *[0] * (self.length - len(p.tokens))] for p in self.buckets[number].prompts]
        return own + [[0] * self.length] * (self.rows - len(own))


class Programs:
    """Programs of one checkpoint, made when they are first asked for. Raises where its config, or a program that was
    given, is at fault."""

    def __init__(
        self, checkpoint: Path, request: OffloadRequest, settings: GenerationSettings, place: ProcessPlace = ALONE
    ) -> None:
        """With `place` those of one process of several."""
        self.place = place
        self.folder = checkpoint
        self.request = request
        self.settings = settings
        self.config = read_config(checkpoint)
        self.dtype = request.dtype or checkpoint_dtype(self.config)
        self._made: dict[tuple[int, int, int, int, bool], Program] = {}
        self._sampling: dict[int, Program] = {}
        self._chosen: Program | None = None
        imported = self._imported(1, 1, 1)
        self._text = imported.unformatted
        self.vocab = imported.model.vocab
        self.longest = imported.model.longest
        self.layers = imported.model.layers
        self.mapping: WeightMap = imported.mapping
        if request.program is not None:
            with located(request.program):
                self._check(self.written)

    def _imported(self, rows: int, length: int, cache: int) -> ImportedModel:
        layout = self.request.layout if self.request.program is None else OPEN
        with located(Source(str(config_path(self.folder)), "")):
            return imported_on(
                self.config.keys, self.place.mesh, layout, rows, length, cache, self.request.dtype,
                self.request.policy.cache_format,
            )  # fmt: skip

    # ------------------------------------------------------------ weights

    @cached_property
    def own(self) -> Program:
        """The checkpoint's own program, for one row."""
        return elaborate(parse(Source("<import>", self._text)))

    @cached_property
    def recipe(self) -> Quantization:
        """How weights are stored in few bits."""
        return recipe_of(self._stored(self.own if self.request.program is None else self.written), self.own)

    def _stored(self, program: Program) -> Program:
        """The program with weights in the format that is asked for."""
        return run_passes(program, passes_for_weights(self.request.policy.weight_format))

    @property
    def dtypes(self) -> dict[str, DType]:
        """The formats that the weights of the checkpoint are read in."""
        given = self.own if self.request.program is None else self.written
        made = {value.name: value.type.dtype for value in self.own.weights}
        found = {value.name: value.type.dtype for value in given.weights}
        made |= {name: found[name] for name in made if name in found and found[name].is_wide_float}
        scaled = {entry.weight: found.get(entry.scale) for entry in self.recipe if entry.groups is not None}
        return made | {name: dtype for name, dtype in scaled.items() if dtype is not None}

    # ------------------------------------------------------------ a program that was given

    @cached_property
    def written(self) -> Program:
        """The program that was given, each row with pages of its own; where it has a schedule, and layouts that do not
        follow from what it says, with these chosen as `compile` does."""
        assert self.request.program is not None
        program = elaborate(parse(self.request.program), dict(self.place.mesh) or None)
        if not has_schedule(program):
            return PagesToRows().run(program)
        try:
            complete(program)
        except DiagnosticError as error:
            if any(each.code != "ambiguous-type" for each in error.diagnostics):
                raise
            return run_passes(program, explicit_passes(self._placing(program)))
        return program

    def _placing(self, program: Program) -> Place:
        """Chooses layouts for a run: the functions of the program that are in it, as often as they are called."""
        often = {ENTERS: 1.0, BOTH: 1.0, STAYS: float(max(1, self.settings.max_new_tokens - 1))}
        return Place.of(calls={func.name: often[func.name] for func in program.funcs if func.name in often})

    @property
    def fixed(self) -> bool:
        """True if a program was given whose schedule is written down: it runs as it is, with the sizes that it has."""
        return self.request.program is not None and has_schedule(self.written)

    def _check(self, program: Program) -> None:
        """Raises where the program is none of this checkpoint, for other chips, or where movements are written down and
        one is missing: what runs as it is written has none inserted."""
        if self.fixed:
            verify(complete(program), Level.EXPLICIT)
        else:
            verify(program, Level.SURFACE)
        if program.mesh.n_chips != self.place.mesh.n_chips:
            raise fault(
                "bad-processes",
                f"the program is for the mesh {program.mesh}, each chip of which is a process",
                NOWHERE,
                "the command starts them: shardwright offload CHECKPOINT --policy FILE.shard",
            )
        known = {value.name: value.shape for value in self.own.weights}
        scales = {entry.scale for entry in self.recipe}
        for value in program.weights:
            there = known.get(value.name)
            if value.name in scales:
                continue
            if there is None:
                raise fault("wrong-program", f"the checkpoint has no weight {value.name}", value.span,
                            f"it has {', '.join(known)}")  # fmt: skip
            if [dim.size for dim in there.dims] != [dim.size for dim in value.shape.dims]:
                sizes = ", ".join(f"{dim.name}={dim.size}" for dim in there.dims)
                raise fault(
                    "wrong-program", f"{value.name}: {value.type} is {there} with {sizes} in the checkpoint", value.span
                )
        if not has_phases(program):
            raise fault(
                "no-phases", "offloading needs functions prefill and decode", NOWHERE,
                "shardwright import CHECKPOINT --cache T -o FILE writes such a program",
            )  # fmt: skip
        self._check_params(program)
        self._check_shares(program)
        self._check_options(program)
        WrittenSizes.of(program)

    @cached_property
    def tables(self) -> dict[str, dict[str, PagedUse]]:
        """The tables of pages that the functions of a program with movements are called with, by the use of each that
        takes most pages."""
        made: dict[str, dict[str, PagedUse]] = {}
        for func in self.written.funcs if self.request.program is not None else ():
            params = {value.name for value in func.params}
            uses = (use for _, use in paged_uses(self.written, func) if use.table in params)
            made[func.name] = {use.table: use for use in sorted(uses, key=lambda use: use.numbers.size)}
        return made

    def _check_params(self, program: Program) -> None:
        """Raises where a function has a parameter that a run has nothing for, or a pool too few pages for its rows."""
        for func in program.funcs:
            tables = self.tables[func.name]
            given = {*ARGUMENTS.get(func.name, {value.name for value in func.params}), *tables}
            for value in func.params:
                if value.name not in given:
                    known = " and ".join(ARGUMENTS[func.name])
                    raise fault("wrong-program", f"{func.name} has a parameter {value.name}: {value.type}, and a run"
                                f" calls it with {known}", value.span, "leave it out")  # fmt: skip
            for let, use in paged_uses(program, func):
                if use.table in tables and use.pages <= (last := int(tables[use.table].numbers.max())):
                    raise fault(
                        "wrong-program",
                        f"{use.page}={use.pages} pages are too few: the rows of {use.table} take {last + 1}",
                        let.span,
                        f"give it a pool of {last + 1} pages, as import does without --pages",
                    )

    def _check_shares(self, program: Program) -> None:
        """Raises where slices of a value would lie in one memory or in another, and positions on disk."""
        loops = loop_dims(program)
        for value in (*program.weights, *program.state):
            placement = value.type.placement or ON_DEVICE
            along = placement.along
            numbers = value.name in program.state_names and value.type.dtype in (DType.INT32, DType.UINT32)
            if numbers and Tier.DISK in dict(placement.shares):
                raise fault("bad-placement", f"{value.name}: {value.type}: a run reads positions from the device or the"
                            " host", value.span, "leave on disk out")  # fmt: skip
            if along in loops:
                raise fault(
                    "bad-placement",
                    f"{value.name}: {value.type} is shared along {along}, over which a loop goes, and a run shares"
                    " each trip's slice alike",
                    value.span,
                    f"share it along a dimension other than {along}",
                )

    def _check_options(self, program: Program) -> None:
        """Raises where an option asks for what the program says otherwise."""
        request, formats = self.request, {value.type.dtype for value in program.weights if value.type.dtype.is_float}
        if request.dtype is not None and formats and request.dtype not in formats:
            held = ", ".join(map(str, sorted(formats)))
            raise fault(
                "wrong-program", f"the program's weights are {held}, and {request.dtype} is asked for", NOWHERE,
                "leave --dtype out, or make a program in that format: shardwright import CHECKPOINT"
                f" --dtype {request.dtype}",
            )  # fmt: skip
        policy = request.policy
        if policy.cache_format is not None:
            raise fault("wrong-program", f"the program says how its cache is stored, and {policy.cache_format} is asked"
                        " for", NOWHERE, "leave --compress and --cache-format out, or make a program with such a cache:"
                        f" shardwright import CHECKPOINT --cache T --cache-format {policy.cache_format}")  # fmt: skip
        if policy.weight_format is not None and (self.fixed or any(v.type.dtype.bits <= 8 for v in program.weights)):
            raise fault("wrong-program", f"the program says how its weights are stored, and {policy.weight_format} is"
                        " asked for", NOWHERE, "leave --weights out, or store them so in a program without movements:"
                        " shardwright opt FILE --passes quantize-weights")  # fmt: skip
        if not self.fixed:
            return
        written = "the program has its movements written down"
        if request.schedule == "diagonal" and BOTH not in {func.name for func in program.funcs}:
            raise fault("wrong-program", f"{written}, in a schedule that is not the diagonal one", NOWHERE,
                        "leave --schedule out, or give a program without movements")  # fmt: skip
        if self.place.stage.count > 1:
            raise fault("wrong-program", f"{written}, for all layers, and each process of a pipeline has some of them",
                        NOWHERE, "leave --gpus out, or give a program without movements")  # fmt: skip
        if self.settings.logprobs:
            raise fault("wrong-program", f"{written}, and no function of it scores prompts", NOWHERE,
                        "leave --logprobs out, or give a program without movements")  # fmt: skip

    # ------------------------------------------------------------ blocks

    def blocks(self, prompts: Sequence[Prompt]) -> list[PromptBlock]:
        """The prompts in blocks, the longest first, so that memory that does not suffice is found out at once."""
        new, policy = max(1, self.settings.max_new_tokens), self.request.policy
        rows, together = policy.gpu_batch, policy.n_gpu_batches
        diagonal = self.request.schedule == "diagonal" and new > 1
        sizes = WrittenSizes.of(self.written) if self.fixed else None
        if sizes is not None:
            together, rows = sizes.batches, sizes.rows
            diagonal = BOTH in {func.name for func in self.written.funcs}
        made: list[PromptBlock] = []
        for block in buckets(prompts, len(prompts) if diagonal else rows * together, longest=self.longest):
            n, length = len(block.prompts), block.length
            batches, each, cache = (
                -(-n // rows),
                rows,
                max(length, min(self.longest, length + self.settings.max_new_tokens)),
            )
            if sizes is not None:
                length, cache = sizes.length, sizes.cache
                batches = max(batches, together)
            elif not diagonal:
                each = -(-n // batches)
            own = tuple(Bucket(block.prompts[at * each : (at + 1) * each], length) for at in range(batches))
            made.append(PromptBlock(own, each, length, cache, min(together, batches) if diagonal else 0))
        return made

    def groups(self, block: PromptBlock) -> list[list[int]]:
        """The batches of a block that go through the layers together, one group for each process of a pipeline at
        most."""
        n = len(block.buckets)
        count = 1 if self.fixed else max(1, min(self.place.stage.count, block.together or n, n))
        return [list(range(n))[at::count] for at in range(count)]

    def program(self, block: PromptBlock, group: int) -> Program:
        """The program of a group of a block, with its schedule."""
        groups = self.groups(block)
        batches = len(range(group, block.together, len(groups))) if block.together else len(groups[group])
        key = max(1, batches), block.rows, block.length, block.cache, bool(block.together)
        if key not in self._made:
            self._made[key] = self._own(self.written if self.fixed else self._scheduled(*key))
        return self._made[key]

    def _scheduled(self, batches: int, rows: int, length: int, cache: int, together: bool) -> Program:
        split = self.place.split
        program = self._plain(rows if split else batches * rows, length, cache)
        if self.settings.logprobs and self.place.stage.last:
            program = with_hidden(program, ENTERS)
        program = part_of(program, self.place.stage)
        if split:
            program = resized(self._over_chips(program, self._placing(program)), {"B": batches * rows})
        order = "diagonal" if together else "zigzag"
        copies = () if split else (Offload(),)
        return run_passes(program, [*copies, ScheduleBlocks(batches=batches, order=order)])

    def _over_chips(self, program: Program, place: Place) -> Program:
        """The program with its copies and every movement between chips, in layouts that are chosen for one batch.

        Weights have the layouts that the first program was given, since they are loaded once.
        """
        if self._chosen is not None:
            program = with_layouts_of(program, self._chosen)
        made = run_passes(program, [Offload(), *explicit_passes(place)])
        self._chosen = self._chosen or made
        return made

    def _own(self, program: Program) -> Program:
        """The program as this process runs it: of a mesh that of its chip."""
        if not self.place.split:
            return program
        program = complete(program)
        verify(program, Level.EXPLICIT)
        return sharded(program, self.place.chip)

    def _plain(self, rows: int, length: int, cache: int) -> Program:
        """With placements and without movements."""
        sizes = {"B": rows, "L": length, "T": cache}
        if self.request.program is not None:
            with located(self.request.program):
                return self._stored(resized(self.written, sizes))
        text = self._imported(rows, length, cache).unformatted if self.place.split else self._text
        made = placed(elaborate(parse(Source("<import>", text)), dims=sizes), self.request.policy, self.mapping)
        return self._stored(made)

    def scoring(self, rows: int, positions: int) -> Program:
        """Gives the log-probabilities of the tokens that follow so many positions, of a batch."""
        key = 0, rows, positions, 0, False
        if key not in self._made:
            program = scoring(self._plain(rows, 2, 3), self._of_sampling(rows), STAYS, positions)
            made = self._over_chips(program, Place()) if self.place.split else run_passes(program, [Offload()])
            self._made[key] = self._own(made)
        return self._made[key]

    def sampling(self, rows: int) -> Program:
        """The functions that draw tokens, for so many rows."""
        if rows not in self._sampling:
            program = self._of_sampling(rows)
            self._sampling[rows] = self._own(run_passes(program, EXPLICIT) if self.place.split else program)
        return self._sampling[rows]

    def _of_sampling(self, rows: int) -> Program:
        settings = self.settings
        axes, order = self._columns() if self.place.split and self.place.stage.last else ((), ())
        logits = f"f32 {row_text(['B', 'V'], [(), axes])}"
        mesh = f"mesh {self.place.mesh}\n" if self.place.split else ""
        digits = f" order {' '.join(map(str, order))}" if order else ""
        text = sampling_functions(logits, self.vocab, top_k=bool(settings.top_k), top_p=settings.top_p < 1.0)
        return elaborate(parse(Source("<sampling>", f"{mesh}dim B={rows}\ndim V={self.vocab}{digits}\n{text}")))

    def _columns(self) -> tuple[Axes, Order]:
        """The axes over which logits are split along the vocabulary, and the order of its digits."""
        program = complete(self._chosen if self._chosen is not None else self.written)
        kind = program.func(STAYS).results[0]
        assert isinstance(kind, TensorType)
        if any(kind.splits[:-1]) or kind.partial is not None:
            raise fault("wrong-program", f"tokens are drawn from whole rows of logits, and these are {kind}", NOWHERE,
                        "give the result of decode all rows on each chip, as in f32 BV_x")  # fmt: skip
        return kind.splits[-1], Digits.of(program, program.func(STAYS)).order(kind, kind.names[-1])


def model_program(
    model: Model, policy: Policy, prompt: int, context: int, dtype: DType, mesh: Mesh = ONE_CHIP, layout: str = "ws1d"
) -> Program:
    """A model's program for a block of the policy, with its placements, and on a mesh its layouts."""
    request = ForwardRequest(layout, mesh, policy.block, prompt, dtype, None, context, cache_format=policy.cache_format)
    program = elaborate(parse(Source("<model>", model_text(model, request)[0])))
    return run_passes(placed(program, policy, weight_map(model)), passes_for_weights(policy.weight_format))


def scheduled_model(
    model: Model, policy: Policy, prompt: int, context: int, dtype: DType, *, diagonal: bool
) -> Program:
    """A model's program for a block of the policy, with its placements and its schedule."""
    order = "diagonal" if diagonal else "zigzag"
    passes = [Offload(), ScheduleBlocks(batches=policy.n_gpu_batches, order=order)]
    return run_passes(model_program(model, policy, prompt, context, dtype), passes)
