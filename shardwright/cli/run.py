"""`shardwright run`: run a program on the devices at hand and compare it with the reference."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, NamedTuple

from shardwright.cli.options import add_choice, add_file, add_json, add_micro_batches, add_sizes, natural, place_of
from shardwright.cli.processes import add_processes, processes_from

if TYPE_CHECKING:
    import argparse
    from collections.abc import Callable, Mapping, Sequence

    from shardwright.backends.number_formats import Array
    from shardwright.backends.torch.world import World
    from shardwright.cli.options import Subparsers
    from shardwright.ir.diagnostics import Source
    from shardwright.ir.program import Func, Program, Value
    from shardwright.passes.base import Pass
    from shardwright.passes.compiling.place import Place


def add_parser(subparsers: Subparsers) -> None:
    """FILE [--weights FOLDER [--against transformers]] [--passes 'a,b'] [--kernels FILE.py] [--seed N] [--mesh] [--dim]
    [--json]."""
    parser = subparsers.add_parser(
        "run",
        description="Run a program on the devices at hand, on random inputs, and say how far it is from the reference. "
        "Where the mesh is larger than the machine, it runs on virtual CPU devices and says so. Exit status 1 if the "
        "largest difference, over the largest magnitude of the reference, is above the square root of the coarsest "
        "number format's precision: 3.5e-4 for f32, 3.1e-2 for f16, 8.8e-2 for bf16.",
    )
    add_file(parser)
    parser.add_argument("--weights", metavar="FOLDER", help="a checkpoint (config.json and safetensors) to load")
    parser.add_argument(
        "--against",
        choices=("transformers", "nothing"),
        help="compare the logits of a checkpoint with those of this library in float32 too; what happens anyway where "
        "it is installed and the program gives logits of token ids",
    )
    parser.add_argument(
        "--passes", metavar="'a,b{k=v}'", help="transform the program first, and the checkpoint's weights with it"
    )
    parser.add_argument(
        "--to",
        choices=("jax", "torch"),
        default="jax",
        help="the framework that runs it (default: jax). Under torch each chip is a process, of torchrun or one that "
        "this command starts on this machine, and values live where their types say",
    )
    parser.add_argument(
        "--kernels", metavar="FILE.py", help="a file whose `@shardwright.kernel`s the program calls by name"
    )
    parser.add_argument("--seed", type=natural, default=0, metavar="N", help="of the random inputs (default: 0)")
    add_choice(parser)
    add_sizes(parser)
    add_micro_batches(parser)
    add_json(parser)
    add_processes(parser)
    parser.check(
        lambda args: f"--against {args.against} needs --weights FOLDER" if args.against and not args.weights else None
    )


class Difference(NamedTuple):
    """How far an array is from what it should be: the largest difference, and that over the largest magnitude."""

    absolute: float
    relative: float

    def __str__(self) -> str:
        return f"largest difference {self.absolute:.2e}, relative {self.relative:.2e}"

    def as_json(self) -> dict[str, float | None]:
        """Keys `max_abs_difference`, `max_rel_difference`; null where an infinity or NaN stands on one side alone."""
        import math

        kept = [value if math.isfinite(value) else None for value in self]
        return {"max_abs_difference": kept[0], "max_rel_difference": kept[1]}


def execute(args: argparse.Namespace) -> int:
    """Runs every function. `--json`:
    `{"ok", "mesh", "devices", "virtual", "seed", "tolerance", "functions": [{"name", "results": [D], "state": [D]}],
    "transformers": {"max_abs_difference", "max_rel_difference", "argmax_equal"} or null}`, where D is
    `{"name", "type", "max_abs_difference", "max_rel_difference"}`, relative to the largest magnitude of the
    reference, and "virtual" says that the devices are virtual ones of the CPU.
    """
    if args.kernels:
        from shardwright.tracing.trace import user_module

        user_module(args.kernels)
    if args.to == "torch":
        return _under_torch(args)
    from shardwright.backends.jax.processes import joined

    processes = processes_from(args)
    with joined(processes):
        return _run(args, writes=processes is None or processes.index == 0)


def _under_torch(args: argparse.Namespace) -> int:
    """In one process for each chip of the mesh."""
    from shardwright.backends.torch.kernels import check_kernels
    from shardwright.backends.torch.world import alone, in_world, joined
    from shardwright.cli.output import read_program
    from shardwright.ir.diagnostics import NOWHERE, fault, located
    from shardwright.serving.offloading.launching import run_together

    if in_world():
        with joined(silence=args.silence_timeout) as world:
            args.json = args.json and world.writes
            return _run(args, writes=world.writes, world=world)
    source = read_program(args.file)
    with located(source):
        program = _written(args, source)
        check_kernels(program)
        chips = program.mesh.n_chips
        if chips > 1 and args.file == "-":
            raise fault("bad-setting", "several processes cannot read the program from standard input", NOWHERE)
    return run_together(args.argv, chips) if chips > 1 else _run(args, writes=True, world=alone())


def _written(args: argparse.Namespace, source: Source) -> Program:
    """The program of the file, of pipeline stages what all of them run."""
    from shardwright.compiling.compile_program import load

    return load(source, args.mesh, args.dim, micro_batches=args.micro_batches, place=place_of(args))


def _run(args: argparse.Namespace, *, writes: bool, world: World | None = None) -> int:
    """Does what one process does. Of several all run the same, under PyTorch as the chips of `world`, and the first
    `writes` what came out."""
    from shardwright.cli.output import passes_from, print_json, read_program
    from shardwright.ir.diagnostics import located
    from shardwright.passes.pipelines import options_from, run_passes

    passes = passes_from(args)
    source = read_program(args.file)
    with located(source), options_from("--passes", args.passes or ""):
        written = _written(args, source)
        _check_memory(written, from_checkpoint=bool(args.weights))
        compared = _compared(written, args)
        stored: dict[str, Array] | None = None
        if args.weights:
            program, stored = _with_checkpoint(args.file, args.weights, written, passes)
        else:
            program = run_passes(written, passes)
        from shardwright.backends.simulation.random_inputs import random_inputs, scales_of_narrow
        from shardwright.backends.simulation.reference import evaluate

        place = place_of(args)
        runner = _on_devices(program, place) if world is None else _on_chips(program, world, place)

    from shardwright.compiling.compile_program import tolerance

    def say(text: str) -> None:
        if writes and not args.json:
            print(text)

    say(f"{f'mesh {program.mesh}' if len(program.mesh) else 'no mesh'}: {runner.devices}")
    limit = tolerance(program)
    worst = 0.0
    reports: list[dict[str, Any]] = []
    transformers: dict[str, Any] | None = None
    for func in program.funcs:
        inputs = random_inputs(program, func, args.seed, scales_of_narrow(written, written.func(func.name)))
        arguments, state = inputs.args, inputs.state
        weights = inputs.weights if stored is None else stored
        with located(source):
            found, found_state = runner.run(func.name, arguments, weights, state)
        if not writes and world is not None:
            continue
        wanted, wanted_state = evaluate(program, func.name, arguments, weights, state)
        say(func.name)
        report: dict[str, Any] = {"name": func.name, "results": [], "state": []}
        rows = [
            ("results", "result" if len(wanted) == 1 else f"result {i}", kind, found[i], wanted[i])
            for i, kind in enumerate(runner.program.func(func.name).results)
        ]
        rows += [
            ("state", value.name, value.type, found_state[value.name], wanted_state[value.name])
            for value in runner.program.state
        ]
        for where, name, kind, ours, theirs in rows:
            difference = compare(ours, theirs)
            worst = max(worst, difference.relative)
            say(f"  {name}: {kind}: {difference}")
            report[where].append({"name": name, "type": str(kind), **difference.as_json()})
        reports.append(report)
        if writes and compared is not None and func.name == compared.name:
            transformers, distance = _against_transformers(args.weights, func, arguments, found[0], say)
            if fewer := _fewer_bits(written, program):
                say(f"  {fewer} has fewer bits than in the checkpoint: how far that is from it is not held to a limit")
            else:
                worst = max(worst, distance)
    ok = worst <= limit
    say(f"agrees within {limit:.1e}" if ok else f"differs by more than {limit:.1e}")
    if writes and args.json:
        print_json(
            {
                "ok": ok,
                "mesh": dict(program.mesh),
                "devices": runner.n_devices,
                "virtual": runner.virtual,
                "seed": args.seed,
                "tolerance": limit,
                "functions": reports,
                "transformers": transformers,
            }
        )
    return 0 if ok else 1


# ---------------------------------------------------------------- running


class Runner(NamedTuple):
    """A compiled program, its functions as they run here: `run(func, args, weights, state)`; and where, in words."""

    program: Program
    run: Callable[..., tuple[Sequence[Array], Mapping[str, Array]]]
    devices: str
    n_devices: int
    virtual: bool


def _on_devices(program: Program, place: Place) -> Runner:
    """The runner over the devices of JAX."""
    from functools import partial

    from shardwright.backends.jax.devices import arrange_devices
    from shardwright.backends.jax.session import run_program
    from shardwright.backends.targets.names import target_of
    from shardwright.compiling.compile_program import passes_of
    from shardwright.passes.pipelines import explicit

    devices = arrange_devices(program.mesh.n_chips)
    target = target_of(devices.devices)
    compiled = explicit(program, then=passes_of(target), place=place)
    run = partial(run_program, compiled, forms=target and target.forms)
    return Runner(compiled, run, str(devices), len(devices.devices), devices.virtual)


def _on_chips(program: Program, world: World, place: Place) -> Runner:
    """The processes of PyTorch."""
    from functools import partial

    from shardwright.backends.torch.session import run_program
    from shardwright.passes.memory.offload import Offload
    from shardwright.passes.pipelines import explicit, run_passes

    compiled = explicit(run_passes(program, [Offload()]), place=place)
    where = f"{world.count} process{'' if world.count == 1 else 'es'} of PyTorch"
    return Runner(compiled, partial(run_program, compiled, world=world), where, world.count, False)


# ---------------------------------------------------------------- comparing


def compare(found: Array, wanted: Array) -> Difference:
    """The largest difference of two arrays. Equal infinities, and NaN in both, count as equal.

    For integers and bools, which a float near a tie may turn, the relative difference is the share of elements that
    differ.
    """
    import numpy as np

    from shardwright.backends.validation.validate import differences

    if not wanted.size:
        return Difference(0.0, 0.0)
    ours, theirs = np.asarray(found, np.float64).reshape(wanted.shape), np.asarray(wanted, np.float64)
    apart = differences(ours, theirs)
    largest = float(apart.max())
    if wanted.dtype.kind in "iub":
        return Difference(largest, np.count_nonzero(apart) / apart.size)
    magnitude = float(np.max(np.where(np.isfinite(theirs), np.abs(theirs), 0.0)))
    return Difference(largest, largest / magnitude if magnitude else largest)


def _compared(program: Program, args: argparse.Namespace) -> Func | None:
    """The function whose logits are compared with those of transformers, if any.

    Raises where that was asked for and there is none.
    """
    from importlib.util import find_spec

    from shardwright.ir.diagnostics import NOWHERE, fault

    if not args.weights or args.against == "nothing":
        return None
    found = _logits_function(program)
    if args.against is None:
        return found if find_spec("transformers") and find_spec("torch") else None
    if found is None:
        raise fault(
            "no-logits",
            "there is no function from token ids to logits, func forward(ids: int32 BL) -> f32 BLV, to compare",
            NOWHERE,
            "import writes one without --cache",
        )
    return found


def _fewer_bits(written: Program, program: Program) -> str:
    """The name of a weight that passes store in fewer bits; "" where there is none."""
    before = {value.name: value.type.dtype.bits for value in written.weights}
    return next((v.name for v in program.weights if v.type.dtype.bits < before.get(v.name, 0)), "")


def _logits_function(program: Program) -> Func | None:
    """The function from token ids to logits."""
    from shardwright.ir.types import DType

    for func in program.funcs:
        if len(func.params) == 1 and func.params[0].type.dtype is DType.INT32 and not program.state:
            ids, logits = func.params[0].type.names, func.results[0].names
            if len(ids) == 2 and len(logits) == 3 and logits[:2] == ids:
                return func
    return None


def _against_transformers(
    folder: str, func: Func, arguments: Mapping[str, Array], logits: Array, say: Callable[[str], None]
) -> tuple[dict[str, Any], float]:
    """The keys that `--json` says of the comparison, and the relative difference."""
    import numpy as np

    from shardwright.models.transformers_logits import transformers_logits

    theirs = transformers_logits(folder, arguments[func.params[0].name])
    difference = compare(logits, theirs)
    equal = int(np.sum(logits.argmax(-1).reshape(theirs.shape[:2]) == theirs.argmax(-1)))
    positions = theirs[..., 0].size
    say(f"  against transformers in float32: {difference}; argmax equal at {equal} of {positions} positions")
    return {**difference.as_json(), "argmax_equal": equal == positions}, difference.relative


# ---------------------------------------------------------------- weights and memory


def _with_checkpoint(
    file: str, folder: str, program: Program, passes: Sequence[Pass]
) -> tuple[Program, dict[str, Array]]:
    """The program after the passes and its weights, of a checkpoint: all of them, which the reference needs.

    By the mapping beside the program, or else by the checkpoint's config.
    """
    from shardwright.cli.output import map_beside
    from shardwright.compiling.declared_packing import declared_packing, parts_of, stored_dtypes
    from shardwright.ir.weight_source import read_whole
    from shardwright.models.architectures import describe
    from shardwright.models.checkpoint import CheckpointSource
    from shardwright.models.config import config_path, read_config
    from shardwright.models.weight_map import check_map, weight_map
    from shardwright.passes.pipelines import run_with_weights
    from shardwright.passes.transformations.packed_weights import PackedWeights

    mapping = map_beside(file)
    if mapping is None:
        from shardwright.ir.diagnostics import Source, located

        with located(Source(str(config_path(folder)), "")):
            mapping = weight_map(describe(read_config(folder)))
    packing = declared_packing(program, mapping)
    check_map(mapping, program, parts_of(packing))
    with CheckpointSource(folder, mapping, stored_dtypes(program, packing)) as stored:
        held = PackedWeights(packing, stored) if packing else stored
        made, source = run_with_weights(program, passes, held)
        return made, {name: read_whole(source, name) for name in source.names}


def _check_memory(program: Program, *, from_checkpoint: bool) -> None:
    """Raises where the unsharded reference would not fit in half of the machine's memory."""
    import os

    from shardwright.ir.diagnostics import NOWHERE, fault

    memory = os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_PHYS_PAGES")
    needed = _needed_bytes(program)
    if needed > memory / 2:
        raise fault(
            "too-large",
            f"the unsharded reference would take about {needed / 2**30:.0f} GiB, and the machine has"
            f" {memory / 2**30:.0f} GiB of memory",
            NOWHERE,
            "a checkpoint's batch and length can be made smaller: --dim B=1,L=16"
            if from_checkpoint
            else "make it smaller: --dim B=2,E=64,... and --mesh x=2,...",
        )


def _needed_bytes(program: Program) -> int:
    """About what the unsharded reference holds in memory: every input and the three largest values, in float64."""
    from shardwright.ir.digit_orders import typed_values

    def elements(values: tuple[Value, ...]) -> int:
        return sum(value.shape.elements for value in values)

    most = 0
    for func in program.funcs:
        largest = max((use.type.shape.elements for use in typed_values(program, func)), default=0)
        most = max(most, elements(func.params) + 3 * largest)
    return 8 * (2 * elements((*program.weights, *program.state)) + most)
