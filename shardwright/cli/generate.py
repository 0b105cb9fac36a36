"""`shardwright generate`: text from a checkpoint, by the programs that the compiler makes of it."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from shardwright.cli.options import (
    add_attention,
    add_choice,
    add_dtype,
    add_experts,
    add_formats,
    add_json,
    add_output,
    add_pages,
    add_sizes,
    natural,
    place_of,
    positive,
    size_in_bytes,
)
from shardwright.cli.processes import add_processes, processes_from
from shardwright.cli.sampling import add_sampling, nothing_to_compute, settings_of

if TYPE_CHECKING:
    import argparse

    from shardwright.cli.options import Parser, Subparsers
    from shardwright.ir.types import DType
    from shardwright.serving.generation.plan import GenerationPlan
    from shardwright.serving.generation.planning import PlanOptions
    from shardwright.serving.generation.prompts import Prompt
    from shardwright.serving.generation.run_settings import RunSettings
    from shardwright.serving.generation.settings import GenerationSettings
    from shardwright.serving.generation.tokenizer import Tokenizer

_SIZES = {"B": "batch", "L": "chunk", "T": "cache"}
"""What --dim may give, and the options that give it too."""


def add_parser(subparsers: Subparsers) -> None:
    """CHECKPOINT (--prompt TEXT | --tokens IDS | --prompts IN.jsonl) [-o OUT.jsonl] and what stands below."""
    parser = subparsers.add_parser(
        "generate",
        description="Continue prompts with a Hugging Face checkpoint, compiled for a mesh with a layout for prefill "
        "and one for decode. Prompts are words or token ids; from a file they are JSON lines, "
        '{"prompt": "text"} or {"tokens": [ids]}, and come out with "index", "new_tokens" and, if there is a tokenizer,'
        ' "text".',
    )
    parser.add_argument("checkpoint", metavar="CHECKPOINT", help="a folder with config.json and *.safetensors")
    parser.add_argument("--prompt", action="append", metavar="TEXT", help="a prompt; may be given more than once")
    parser.add_argument(
        "--tokens", action="append", metavar="IDS", type=_tokens, help="a prompt as token ids, as in '1 15 7'"
    )
    parser.add_argument("--prompts", metavar="IN.jsonl", help="prompts as JSON lines; - reads standard input")
    add_output(parser, "OUT.jsonl")
    _add_settings(parser)
    _add_plan(parser)
    parser.add_argument("--stream", action="store_true", help="show the text of one prompt as it grows, not at its end")
    add_processes(parser)
    add_json(parser)
    for rule in (_one_kind_of_prompts, _dims, nothing_to_compute, _differ, _one_stream):
        parser.check(rule)


def _add_settings(parser: Parser) -> None:
    add = parser.add_argument
    add("--max-new-tokens", type=natural, metavar="N", help="at most so many (default: 64, or what there is room for)")
    texts = add_sampling(parser)
    add("--samples", type=positive, default=1, metavar="N", help="continuations of each prompt (default: 1)")
    texts.add_argument(
        "--stop-token",
        action="append",
        type=natural,
        default=[],
        metavar="ID",
        help="end a text after this token, beside the checkpoint's own; may be given more than once",
    )


def _add_plan(parser: Parser) -> None:
    add = parser.add_argument
    layout = "NAME|FILE"
    add("--decode-layout", default="ws2d", metavar=layout, help="a preset, or a .shard file (default: ws2d)")
    add("--prefill-layout", metavar=layout, help="the same for prefill (default: that of decode)")
    add_attention(add, None, "head")
    add("--batch", type=positive, metavar="B", help="texts that are continued at a time (default: up to 16)")
    add("--prefill-batch", type=positive, metavar="B", help="prompts that are read at a time, in rows of their own")
    add("--chunk", type=positive, metavar="L", help="tokens of a prompt that are read at a time (default: up to 256)")
    add("--cache", type=positive, metavar="T", help="positions of the KV cache (default: what the prompts need)")
    add_dtype(parser)
    add_formats(add)
    add_pages(parser)
    add_choice(parser)
    experts = parser.add_argument_group("experts", "how tokens and experts come together")
    add_experts(parser, "replicated", experts.add_argument)
    add("--passes", default="", metavar="'a,b{k=v}'", help="what to do to the program, and to the weights with it")
    add("--device-memory", type=size_in_bytes, metavar="16GB", help="of a chip (default: what the device says)")
    add_sizes(parser)


def _tokens(text: str) -> list[int]:
    import argparse

    words = text.replace(",", " ").split()
    if not words or not all(word.isascii() and word.isdigit() and len(word) < 19 for word in words):
        raise argparse.ArgumentTypeError(f"{text!r} is not a list of token ids, as in '1 15 7'")
    return [int(word) for word in words]


def _one_kind_of_prompts(args: argparse.Namespace) -> str | None:
    given = [name for name in ("prompt", "tokens", "prompts") if getattr(args, name)]
    if not given:
        return "one of --prompt, --tokens and --prompts is required"
    if len(given) > 1:
        return f"--{given[0]} and --{given[1]} cannot be given together"
    return None


def _dims(args: argparse.Namespace) -> str | None:
    for name in args.dim:
        if name not in _SIZES:
            return f"--dim {name}: the checkpoint gives the sizes of all dimensions but B, L and T"
        if getattr(args, _SIZES[name]) is not None:
            return f"--dim {name} and --{_SIZES[name]} both give the size of {name}"
    return None


def _differ(args: argparse.Namespace) -> str | None:
    if args.samples > 1 and (not args.temperature or args.max_new_tokens == 0):
        return f"--samples {args.samples} needs --temperature above 0, and new tokens: else all are the same"
    return None


def _one_stream(args: argparse.Namespace) -> str | None:
    if not args.stream:
        return None
    if args.json or args.output:
        return "--stream shows text on standard output, without --json and -o"
    if len(args.prompt or args.tokens or []) != 1 or args.samples > 1 or args.logprobs:
        return "--stream is for one sample of one prompt, given as --prompt or --tokens, without --logprobs"
    return None


def execute(args: argparse.Namespace) -> int:
    """Continues the prompts. On standard output, or with -o there: a line of JSON for each, as soon as it and those
    before it are ready; for a single prompt given as --prompt or --tokens, its text alone. `--json`: `{"ok",
    "architecture", "mesh", "devices", "virtual", "decode_layout", "prefill_layout", "batch", "prefill_batch", "chunk",
    "cache", "new_tokens", "seconds", "tokens_per_second", "results"}`, `results` being the lines, or with -o
    `resumed`, the texts that were answered before, and `output`, the file's name, in their place; with pages also
    `page_size` and `pages`, and `refused`, how many prompts are too long, where some are. With -o a run goes on where
    the output ends (`serving.generation.journal`).
    """
    from shardwright.backends.jax.processes import joined
    from shardwright.cli.interrupts import going_on_from

    processes = processes_from(args)
    writes = processes is None or processes.index == 0
    with going_on_from(args.output if writes else None), joined(processes):
        return _generate(args, writes=writes)


def _generate(args: argparse.Namespace, *, writes: bool) -> int:
    """Does what one process does. Of several all compute the same, and the first `writes` it."""
    import sys
    import time
    from contextlib import nullcontext
    from functools import partial
    from itertools import chain

    from shardwright.backends.jax.devices import arrange_devices
    from shardwright.backends.jax.session import told_by_first
    from shardwright.cli.output import print_json, read_program
    from shardwright.cli.progress import GenerationProgress
    from shardwright.models.importing import checkpoint_dtype
    from shardwright.serving.generation.bad_logits import explained
    from shardwright.serving.generation.inputs import generation_inputs
    from shardwright.serving.generation.journal import Journal
    from shardwright.serving.generation.loading import load_engine
    from shardwright.serving.generation.memory import exhaustion
    from shardwright.serving.generation.outputs import completion_keys, in_order, texts_of, write_line
    from shardwright.serving.generation.planning import default_new_tokens, make_plan, prompts_with_room
    from shardwright.serving.generation.programs import numbers_of_scales
    from shardwright.serving.generation.prompts import read_text
    from shardwright.serving.generation.too_long_prompts import told

    read = partial(read_program, "-") if args.prompts == "-" else partial(read_text, args.prompts)
    inputs = generation_inputs(
        args.checkpoint,
        args.prompt or args.tokens or read,
        args.stop_token,
        own_stops=not args.ignore_eos,
        writes_texts=True,
    )
    config, model, tokenizer = inputs.config, inputs.model, inputs.tokenizer
    options = _options(args)
    new: int | None = args.max_new_tokens
    prompts, refused = prompts_with_room(
        model, inputs.prompts, new, options, args.checkpoint, refuse=args.refuse_too_long
    )
    if refused and writes:
        print(told(refused, len(inputs.prompts)), file=sys.stderr)
    if new is None:
        new = default_new_tokens(model, prompts, options, args.checkpoint)
    settings = settings_of(args, inputs.stop_tokens, new, args.samples)
    plan = make_plan(model, prompts, settings, options, args.checkpoint)
    streamed = writes and _is_plain(args) and (args.stream or sys.stdout.isatty())
    results: list[dict[str, Any]] = []
    made, seconds = 0, 0.0
    dtype = plan.dtype or checkpoint_dtype(config)
    without_room = {each.prompt.index for each in refused}
    texts = texts_of(inputs.prompts, settings.samples, without_room)
    kept: str | None = args.output if writes and args.output != "-" else None
    with (
        exhaustion(args.checkpoint),
        explained(args.checkpoint, dtype) if writes else nullcontext(),
        Journal(
            kept,
            inputs.prompts,
            lambda: _run_settings(args, inputs.prompts, settings, dtype, numbers_of_scales(config.keys, plan)),
            settings.samples,
            without_room,
        )
        if kept is not None
        else nullcontext() as journal,
    ):
        arrange_devices(plan.n_chips)  # before anything asks JAX, which starts it
        answered = frozenset(told_by_first([] if journal is None else sorted(journal.answered)))
        left = [text for text in texts if text not in answered]
        if answered and writes:
            print(f"{args.output} answers {len(answered)} of {len(texts)} texts; going on", file=sys.stderr)
        with GenerationProgress(len(left), writes) as progress:
            engine = None
            if not without_room.issuperset(index for index, _ in left):
                engine = load_engine(
                    args.checkpoint, config.keys, plan, device_memory=args.device_memory, progress=progress.loaded
                )
                if writes and not args.mesh and not args.json:
                    progress.say(f"mesh {plan.mesh}: {engine.devices}")
            shown = _Shown(tokenizer) if streamed else None
            if shown is not None:
                progress.close()
            began = time.perf_counter()
            running = () if engine is None else engine.run(prompts, settings, shown or progress.token, answered)
            errors = (each for each in refused if (each.prompt.index, 0) not in answered)
            for completion in in_order(chain(errors, running), left):
                made += len(completion.new_tokens)
                progress.text()
                keys = completion_keys(completion, tokenizer, settings.samples)
                if shown is not None:
                    shown.end()
                elif _is_plain(args) and writes:
                    progress.close()
                    print(keys["text"] if tokenizer is not None else " ".join(map(str, completion.new_tokens)))
                elif args.json and args.output is None:
                    results.append(keys)
                elif journal is not None:
                    journal.write(keys)
                elif writes:
                    write_line(keys)
            seconds = time.perf_counter() - began
    if args.json and writes:
        run = {"new_tokens": made, "seconds": seconds, "tokens_per_second": made / seconds}
        run |= {"refused": len(refused)} if refused else {}
        where = {"results": results} if args.output is None else {"resumed": len(answered), "output": args.output}
        print_json({"ok": True, "architecture": model.architecture, **_described(plan), **run, **where})
    return 0


def _run_settings(
    args: argparse.Namespace, prompts: list[Prompt], settings: GenerationSettings, dtype: DType, scales: dict[str, int]
) -> RunSettings:
    """All that the answers depend on, with how many numbers of a weight have a scale in common. Of layouts those alone
    that are files, which may hold any program."""
    from pathlib import Path

    from shardwright.serving.generation.file_digests import digest_of
    from shardwright.serving.generation.plan import is_file
    from shardwright.serving.generation.run_settings import run_settings

    layouts = {
        name: None if layout is None or not is_file(layout) else digest_of(Path(layout).read_bytes())
        for name, layout in (("decode_layout", args.decode_layout), ("prefill_layout", args.prefill_layout))
    }
    by_number: dict[int, list[str]] = {}
    for name, number in scales.items():
        by_number.setdefault(number, []).append(name)
    said = ", ".join(f"{number} of {' '.join(names)}" for number, names in sorted(by_number.items()))
    stored = {"weights": args.weights, "passes": args.passes}
    if said:
        by = "passes" if args.weights is None else "weights"
        stored[by] = f"{stored[by]} with a scale for {said}"
    return run_settings(
        "generate",
        args.checkpoint,
        prompts,
        settings,
        dtype=str(dtype),
        **stored,
        experts=args.experts,
        expert_capacity=args.expert_capacity,
        **({} if args.cache_format is None else {"cache_format": args.cache_format}),
        **layouts,
    )


def _described(plan: GenerationPlan) -> dict[str, Any]:
    """The keys that `--json` says of how it was computed."""
    from shardwright.backends.jax.devices import arrange_devices

    devices = arrange_devices(plan.n_chips)
    return {
        "mesh": dict(plan.mesh),
        "devices": len(devices.devices),
        "virtual": devices.virtual,
        "decode_layout": plan.decode_layout,
        "prefill_layout": plan.read_layout,
        "batch": plan.batch,
        "prefill_batch": plan.prefill_batch or plan.batch,
        "chunk": plan.chunk,
        "cache": plan.cache,
        **(
            {}
            if plan.pages is None
            else {"page_size": plan.pages.size, "pages": plan.pages.of_rows(plan.batch, plan.cache)}
        ),
    }


class _Shown:
    """Shows the new tokens of one text as they come: its words, or ids where there is no tokenizer."""

    def __init__(self, tokenizer: Tokenizer | None) -> None:
        from shardwright.serving.generation.tokenizer import TextStream

        self._stream = None if tokenizer is None else TextStream(tokenizer)
        self._before = ""

    def __call__(self, _prompt: Prompt, _sample: int, token: int) -> None:
        if self._stream is None:
            print(f"{self._before}{token}", end="", flush=True)
            self._before = " "
        else:
            print(self._stream.add(token), end="", flush=True)

    def end(self) -> None:
        print("" if self._stream is None else self._stream.rest())


def _is_plain(args: argparse.Namespace) -> bool:
    """Tells whether there is one text to show, and nothing to say of it."""
    alone = len(args.prompt or args.tokens or []) == 1 and args.samples == 1 and not args.logprobs
    return alone and not args.json and args.output is None


# ---------------------------------------------------------------- from options


def _options(args: argparse.Namespace) -> PlanOptions:
    from shardwright.ir.mesh import Mesh
    from shardwright.ir.types import DType
    from shardwright.serving.generation.planning import PlanOptions, read_passes

    return PlanOptions(
        Mesh(tuple(args.mesh.items())) if args.mesh else None,
        args.decode_layout,
        args.prefill_layout,
        args.attention,
        args.batch or args.dim.get("B"),
        args.prefill_batch,
        args.chunk or args.dim.get("L"),
        args.cache or args.dim.get("T"),
        DType(args.dtype) if args.dtype else None,
        args.weights,
        args.experts,
        args.expert_capacity,
        args.cache_format,
        args.page_size,
        args.pages,
        read_passes(args.passes),
        place_of(args),
    )
