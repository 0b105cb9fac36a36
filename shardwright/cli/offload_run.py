"""The run of `shardwright offload CHECKPOINT`: its options, its progress, and what it says at its end."""

from __future__ import annotations

import os
import sys
from collections import Counter
from contextlib import nullcontext
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Any

from shardwright.cli.options import (
    add_dtype,
    add_output,
    natural,
    number,
    positive,
    size_in_bytes,
)
from shardwright.cli.processes import add_silence
from shardwright.cli.sampling import add_sampling, nothing_to_compute, settings_of

if TYPE_CHECKING:
    import argparse

    from shardwright.backends.timeline import Recorder, Recording
    from shardwright.backends.torch.world import World
    from shardwright.cli.options import Parser
    from shardwright.ir.mesh import Mesh
    from shardwright.serving.generation.engine import Completion
    from shardwright.serving.generation.journal import Journal
    from shardwright.serving.generation.prompts import Prompt
    from shardwright.serving.generation.run_settings import RunSettings
    from shardwright.serving.generation.settings import GenerationSettings
    from shardwright.serving.generation.tokenizer import Tokenizer
    from shardwright.serving.offloading.request import OffloadRequest
    from shardwright.serving.offloading.run import OffloadedModel
    from shardwright.serving.offloading.run_options import RunOptions


def add_run(parser: Parser) -> None:
    """The options of a run."""
    add = parser.add_argument
    own = parser.add_argument_group("the machine at hand").add_argument
    add("--prompts", metavar="IN.jsonl", help="prompts as JSON lines")
    add_output(parser, "OUT.jsonl", otherwise="needed without --plan-only")
    add("--max-new-tokens", type=natural, metavar="N", default=64, help="at most so many (default: 64)")
    add_sampling(parser)
    add_dtype(parser)
    for tier in ("device", "host", "disk"):
        own(f"--{tier}-memory", type=size_in_bytes, metavar="8GB", help=f"take no more of the {tier} than this")
    own("--spill-dir", metavar="DIR", help="for what lies on disk (default: the folder of temporary files)")
    own(
        "--no-page-cache",
        action="store_true",
        help="files are read from the disk each time, past the page cache (a run does so where they do not fit in it)",
    )
    own("--disk-readers", type=positive, metavar="N", default=4, help="threads that read from disk (default: 4)")
    add("--schedule", choices=("zigzag", "diagonal"), default="zigzag", help="of the batches (default: zigzag)")
    add(
        "--sparse-attention",
        type=number(0.0, 1.0),
        default=1.0,
        metavar="SHARE",
        help="decode looks at this share of the cached positions, those with the greatest scores (default: 1, all)",
    )
    own("--device", metavar="NAME", help="of PyTorch (default: CUDA where there is one, else the CPU)")
    add_silence(own)
    parser.check(_what_a_run_needs)


def _what_a_run_needs(args: argparse.Namespace) -> str | None:
    if args.plan_only:
        return None
    if not args.prompts or args.output in {None, "-"}:
        return "a run needs --prompts IN.jsonl and -o OUT.jsonl; --plan-only runs nothing"
    return nothing_to_compute(args)


@dataclass(frozen=True)
class RunRequest:
    """The request of a run: what it is asked to do: all that is known before anything is loaded."""

    prompts: list[Prompt]
    refused: list[Completion]
    """The errors of those prompts that are too long."""
    tokenizer: Tokenizer | None
    settings: GenerationSettings
    options: RunOptions
    request: OffloadRequest
    stages: int = 1
    """The stages of the pipeline, each a mesh of chips."""

    @property
    def every(self) -> list[Prompt]:
        """All prompts of the input, in its order."""
        return sorted([*self.prompts, *(each.prompt for each in self.refused)], key=lambda prompt: prompt.index)

    @property
    def processes(self) -> int:
        return self.stages * self.request.mesh.n_chips

    def answered_with(self, checkpoint: str) -> RunSettings:
        """All that the answers depend on."""
        from shardwright.models.config import read_config
        from shardwright.models.importing import checkpoint_dtype
        from shardwright.serving.generation.file_digests import digest_of
        from shardwright.serving.generation.run_settings import run_settings

        request, policy = self.request, self.request.policy
        weights = policy.weight_format
        if weights == "int4" and request.mesh:  # how many numbers have a scale in common depends on these
            weights = f"int4, {request.layout} over {request.mesh}"
        program = None
        if request.program is not None:
            program = f"program, digest {digest_of(request.program.text.encode())[:12]}"
        return run_settings(
            "offload",
            checkpoint,
            self.every,
            self.settings,
            dtype=str(request.dtype or checkpoint_dtype(read_config(checkpoint))),
            weights=weights,
            cache_format=policy.cache_format,
            sparse_attention=request.sparse,
            policy=program,
        )

    def facts(self) -> dict[str, str]:
        """The facts that several processes must have in common, by name."""
        import hashlib

        tokens = repr([(prompt.index, prompt.tokens) for prompt in self.prompts])
        return {
            "prompts": hashlib.sha256(tokens.encode()).hexdigest(),
            "settings": repr(self.settings),
            "policy": f"{self.request.policy!r} {self.request.schedule} {self.request.dtype} {self.request.sparse}",
            "mesh": f"{self.request.mesh} {self.request.layout}",
        }


def execute_run(args: argparse.Namespace) -> int:
    """Continues the prompts that the output does not answer yet, and writes each answer when it is there. With `--json`
    prints what was measured (`serving.offloading.run.Report`) with `policy`, `resumed`, the prompts that were answered
    before, `refused`, those that are too long, if any, and `output`; of several processes also `stages`, or over a mesh
    `processes`, with the layers, the chip, the peaks and the bytes moved and read of each."""
    from pathlib import Path

    from shardwright.backends.torch.resident import give_back_what_is_freed
    from shardwright.backends.torch.world import in_world, joined
    from shardwright.serving.offloading.launching import run_together
    from shardwright.serving.offloading.program_parts import ProcessPlace
    from shardwright.serving.offloading.programs import Programs

    give_back_what_is_freed()
    if in_world():
        with joined(silence=args.silence_timeout) as world:
            args.json = args.json and world.writes
            return _run(args, _asked(args, world), world)
    asked = _asked(args)
    if asked.processes == 1:
        return _run_with_room(args, asked)
    with _journal(args, asked):
        if asked.request.program is not None:
            place = ProcessPlace.of(0, asked.processes, asked.request.mesh)
            Programs(Path(args.model), asked.request, asked.settings, place)
        # what is wrong with either is said once, by this process
    return run_together(args.argv, asked.processes, _plan(asked.request))


def _run_with_room(args: argparse.Namespace, asked: RunRequest) -> int:
    """The run; where it chose its policy and a memory does not suffice for that, with one that takes less there."""
    from shardwright.ir.diagnostics import Source, located

    with located(Source("offload", "")):
        return asked.options.with_room(
            asked.prompts,
            asked.request,
            lambda request: _run(args, replace(asked, request=request)),
            lambda line: print(line, file=sys.stderr),
        )


def _asked(args: argparse.Namespace, world: World | None = None) -> RunRequest:
    from shardwright.ir.diagnostics import NOWHERE, Source, fault, located
    from shardwright.serving.generation.inputs import generation_inputs
    from shardwright.serving.generation.prompts import read_text
    from shardwright.serving.generation.too_long_prompts import set_aside, told
    from shardwright.serving.offloading.launching import PLAN, check_count, threads_of
    from shardwright.serving.offloading.program_parts import PipelineStage

    with located(Source("offload", "")):
        mesh = _mesh(args)
        stages = _stages(args, mesh, world)
        count = stages * mesh.n_chips
        if world is None:
            check_count(count)
        if count > 1 and args.prompts == "-":
            raise fault("bad-setting", "several processes cannot read the prompts from standard input", NOWHERE)
    inputs = generation_inputs(args.model, lambda: read_text(args.prompts), (), own_stops=not args.ignore_eos)
    model, new = inputs.model, args.max_new_tokens
    settings = settings_of(args, inputs.stop_tokens, new)
    with located(Source("offload", "")):
        options = _options(args, mesh)
    rooms = options.rooms(model.longest)

    def check(prompt: Prompt) -> None:
        for room in rooms:
            room.check(prompt, new)

    prompts, refused = set_aside(inputs.prompts, check, refuse=args.refuse_too_long)
    if refused and (world is None or (world.writes and PLAN not in os.environ)):
        print(told(refused, len(inputs.prompts)), file=sys.stderr)
    with located(Source("offload", "")):
        PipelineStage(0, stages).layers(model.layers)
        options.check_layout()
        if world is None:
            options = options.on_this_machine(tell, threads_of(count) if count > 1 else None)
        elif args.policy is None:  # the plan of one process for all: on other machines there would be others
            if world.writes:
                made = os.environ.get(PLAN) or _plan(options.on_this_machine(tell).request(prompts, stages))
                world.share("policy", made)
            numbers, attention = world.shared("policy", 0).split()
            options = replace(options, policy=numbers, attention=attention)
        request = options.request(prompts, stages)
        return RunRequest(prompts, refused, inputs.tokenizer, settings, options, request, stages)


def _journal(args: argparse.Namespace, asked: RunRequest) -> Journal:
    from shardwright.serving.generation.journal import Journal

    refused = {each.prompt.index for each in asked.refused}
    return Journal(args.output, asked.every, lambda: asked.answered_with(args.model), refused=refused)


def _plan(request: OffloadRequest) -> str:
    """The policy of a request as one process hands it to others, with the place of attention."""
    return f"{request.policy.numbers} {request.policy.attention}"


def _mesh(args: argparse.Namespace) -> Mesh:
    """The mesh of --mesh, or of the program that --policy names."""
    from shardwright.ir.mesh import Mesh
    from shardwright.serving.offloading.policy_files import is_program, mesh_in

    given = Mesh(tuple(args.mesh.items()))
    return mesh_in(args.policy, given) if args.policy is not None and is_program(args.policy) else given


def _stages(args: argparse.Namespace, mesh: Mesh, world: World | None) -> int:
    """The stages of a pipeline that the processes make up, each of as many as the mesh has chips."""
    from shardwright.ir.diagnostics import NOWHERE, fault

    if world is None:
        return args.gpus
    stages, left = divmod(world.count, mesh.n_chips)
    if left or not stages:
        message = f"the mesh {mesh} has {mesh.n_chips} chips, and {world.count} processes have been started"
        raise fault("bad-processes", message, NOWHERE, f"start {mesh.n_chips}, or a multiple for a pipeline")
    if args.gpus not in (1, stages):
        over = f" over the mesh {mesh}" if mesh else ""
        message = f"--gpus is {args.gpus}{over}, and {world.count} processes have been started"
        raise fault("bad-processes", message, NOWHERE)
    return stages


def tell(text: str) -> None:
    """Writes a piece of a line to standard error at once."""
    print(text, end="", file=sys.stderr, flush=True)


def _run(args: argparse.Namespace, asked: RunRequest, world: World | None = None) -> int:
    """Does what one process does. Of several each has some of the layers, and the first writes."""
    from shardwright.cli.output import print_json
    from shardwright.cli.progress import OffloadProgress
    from shardwright.ir.diagnostics import Source, located
    from shardwright.serving.generation.outputs import completion_keys
    from shardwright.serving.offloading.run import OffloadedModel

    request, writes = asked.request, world is None or world.writes
    if world is not None:
        world.agree(asked.facts())
    measured: dict[str, Any] = {}
    recorder = _recorder(args, world)
    recordings: list[Recording] = []
    with _journal(args, asked) if writes else nullcontext() as journal:
        answered = _answered(journal, world)
        left = [prompt for prompt in asked.prompts if prompt.index not in answered]
        if answered and writes:
            print(f"{args.output} answers {len(answered)} of {len(asked.every)} prompts; going on", file=sys.stderr)
        if journal is not None:
            for each in asked.refused:
                if (each.prompt.index, 0) not in journal.answered:
                    journal.write(completion_keys(each, asked.tokenizer))
        if left:
            with (
                located(Source(args.model, "")),
                OffloadProgress(len(left), args.max_new_tokens, writes) as progress,
                OffloadedModel(
                    args.model, request, left, asked.settings, loading=progress.loaded, observe=recorder, world=world
                ) as offloaded,
            ):
                if recorder is not None:
                    recorder.used = offloaded.used
                progress.watch(offloaded.report, offloaded.moved, offloaded.used)
                for completion in offloaded.completions():
                    if journal is not None:
                        journal.write(completion_keys(completion, asked.tokenizer))
                measured = offloaded.report.as_json()
                if world is not None:
                    measured |= _of_all(world, offloaded)
                if recorder is not None:
                    recordings = _recordings(recorder, world)
    if not writes:
        return 0
    if recorder is not None:
        _write_timeline(args, recordings, asked)
    if args.json:
        print_json(
            {
                "ok": True,
                **measured,
                "policy": request.policy.as_json(),
                "resumed": len(answered),
                **({"refused": len(asked.refused)} if asked.refused else {}),
                "output": args.output,
            }
        )
    elif measured:
        print(_summary(measured), file=sys.stderr)
    return 0


def _answered(journal: Journal | None, world: World | None) -> set[int]:
    """The prompts that are answered already, as the process knows that has the journal."""
    answered = set[int]() if journal is None else {index for index, _ in journal.answered}
    if world is None:
        return answered
    if world.writes:
        world.share("answered", sorted(answered))
    return set(world.shared("answered", 0))


def _of_all(world: World, offloaded: OffloadedModel) -> dict[str, Any]:
    """The measurements of each process, as `stages` or over a mesh as `processes`, the highest `peak_bytes`, and what
    all have moved and read."""
    report, layers, place = offloaded.report, offloaded.layers, offloaded.place
    own: dict[str, Any] = {"layers": [layers.start, layers.stop]}
    if place.split:
        own["chip"] = list(place.mesh.chips())[place.chip]
    own |= {key: report.as_json()[key] for key in ("peak_bytes", "moved_bytes", "read_bytes", "resident_bytes")}
    world.share("measured", own)
    if not world.writes:
        return {}
    every = [world.shared("measured", index) for index in range(world.count)]
    peaks = {tier: max(each["peak_bytes"][tier] for each in every) for tier in report.peak_bytes}
    moved = Counter[str]()
    for each in every:
        moved.update(each["moved_bytes"])
    read = sum(each["read_bytes"] for each in every)
    listed = "processes" if place.split else "stages"
    return {"peak_bytes": peaks, "moved_bytes": dict(moved), "read_bytes": read, listed: every}


def _recorder(args: argparse.Namespace, world: World | None) -> Recorder | None:
    """The recorder of when events happen, where --timeline asks for it."""
    if not args.timeline:
        return None
    from shardwright.backends.timeline import Recorder
    from shardwright.backends.timeline.recorder import MOST_EVENTS

    return Recorder(most=MOST_EVENTS // (1 if world is None else world.count))


def _recordings(recorder: Recorder, world: World | None) -> list[Recording]:
    """The recordings of all processes, where this one writes."""
    from shardwright.backends.timeline import Recording

    if world is None:
        return [recorder.recording]
    world.share("recorded", recorder.recording.as_json())
    return [Recording.of_json(world.shared("recorded", i)) for i in range(world.count)] if world.writes else []


def _write_timeline(args: argparse.Namespace, recordings: list[Recording], asked: RunRequest) -> None:
    from pathlib import Path

    from shardwright.backends.timeline import write_timeline
    from shardwright.backends.timeline.recorder import run_timeline
    from shardwright.cli.output import write_output
    from shardwright.prediction.offload_timeline import run_seconds
    from shardwright.serving.offloading.program_parts import ProcessPlace

    request, options = asked.request, asked.options
    caps = {str(tier): float(cap) for tier, cap in request.caps.items() if cap is not None}
    title = f"{Path(args.model).resolve().name}, {request.policy}, {request.schedule}"
    seconds = None
    if options.machine or options.measured:
        setting, n = options.setting(asked.prompts), len(recordings)
        places = [ProcessPlace.of(i, n, request.mesh) for i in range(n)]
        layers = [len(place.stage.layers(setting.sizes.layers)) for place in places]
        seconds = [
            run_seconds(setting, request.policy, e.events, own) for e, own in zip(recordings, layers, strict=True)
        ]
    write_output(args.timeline, write_timeline(run_timeline(title, recordings, caps, seconds)))


def _summary(measured: dict[str, Any]) -> str:
    from shardwright.ir.text.table import bytes_text

    decode = measured["decode_tokens_per_second"]
    decode = "" if decode is None else f", {decode:,.1f} in decode"
    peaks = ", ".join(f"{tier} {bytes_text(nbytes)}" for tier, nbytes in measured["peak_bytes"].items())
    imports, most = measured["imports_bytes"], measured["resident_bytes"]
    resident = (
        "" if None in {imports, most} else f"; memory after imports: {bytes_text(imports)}, at most: {bytes_text(most)}"
    )
    return (
        f"{measured['new_tokens']:,} new tokens in {measured['seconds']:.1f} s:"
        f" {measured['tokens_per_second']:,.1f} per second{decode};"
        f" prompts included {measured['actual_throughput']:,.1f},"
        f" with padding {measured['padded_throughput']:,.1f}; peaks: {peaks}{resident}"
    )


def _options(args: argparse.Namespace, mesh: Mesh) -> RunOptions:
    from shardwright.ir.types import DType, Tier
    from shardwright.serving.offloading.request import DEFAULT_LAYOUT
    from shardwright.serving.offloading.run_options import RunOptions

    return RunOptions(
        args.model,
        args.max_new_tokens,
        args.policy,
        args.machine,
        args.schedule,
        DType(args.dtype) if args.dtype else None,
        {Tier(tier): getattr(args, f"{tier}_memory") for tier in ("device", "host", "disk")},
        args.spill_dir,
        args.device,
        args.sparse_attention,
        args.disk_readers,
        False if args.no_page_cache else None,
        args.compress is not None,
        (args.weights, args.cache_format),
        args.latency,
        mesh,
        args.layout or DEFAULT_LAYOUT,
        attention=args.attention,
    )
