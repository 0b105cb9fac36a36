"""Policies as they are written: eight numbers in the paper's order, what `--plan-only --json` prints, or a program."""

from __future__ import annotations

import json
from collections.abc import Mapping
from dataclasses import replace
from pathlib import Path
from typing import Any, get_args

from shardwright.cost.offloading.policy import AttentionPlace, Policy, parse_policy, policy_of_json
from shardwright.ir.diagnostics import NOWHERE, fault, located
from shardwright.ir.mesh import Mesh
from shardwright.ir.ops import Movement
from shardwright.ir.program import Program
from shardwright.ir.types import StoredFormat
from shardwright.ir.walk import lets_in

_BITS: Mapping[int, StoredFormat] = {4: "int4", 8: "int8"}


def is_program(path: str) -> bool:
    """Tells whether a name is that of a program of the language."""
    return path.endswith(".shard")


def mesh_in(path: str, given: Mesh) -> Mesh:
    """The mesh of a program, whose axes have the sizes that are `given`. Raises where it has none of these."""
    from shardwright.ir.elaboration.elaborate import elaborate
    from shardwright.ir.text.parser import parse, read_source

    source = read_source(path)
    with located(source):
        module = parse(source)
        if given and not elaborate(module).mesh:
            raise fault(
                "wrong-program",
                f"the program splits nothing over the mesh {given}: it declares no mesh",
                NOWHERE,
                "leave --mesh out, or write one for it: shardwright offload CHECKPOINT --mesh x=2 --plan-only -o FILE",
            )
        return elaborate(module, dict(given) or None).mesh


def has_movements(program: Program) -> bool:
    """Tells whether the copies and the schedule of a program are written down."""
    return any(isinstance(let.operation, Movement) for func in program.funcs for let in lets_in(func.body))


def has_schedule(program: Program) -> bool:
    """Tells whether copies are written down, or loops over batches, which take tokens as [M, B, L]: where everything
    lies on the device a schedule has no copies."""
    decode = (func for func in program.funcs if func.name == "decode")
    ids = (value for func in decode for value in func.params if value.name == "ids")
    return has_movements(program) or any(len(value.shape.dims) == 3 for value in ids)


def check_plannable(path: str) -> None:
    """Raises where a file is a program whose movements are written down, of which shares alone would be priced."""
    from shardwright.ir.elaboration.elaborate import elaborate
    from shardwright.ir.text.parser import parse, read_source

    source = read_source(path)
    with located(source):
        if has_movements(elaborate(parse(source))):
            raise fault(
                "bad-policy",
                "the program has its movements written down, and a plan prices placements under a schedule of its own",
                NOWHERE,
                f"price what is written: shardwright cost {path}; or plan the program that it was made of",
            )


def read_policy(text: str, attention: AttentionPlace | None = None) -> Policy:
    """A policy in the paper's order, or of a file: what --plan-only --json printed, or a program that it wrote. Where
    neither says where attention is computed it is as `attention` says, or on the device."""
    return read_policies(text, attention)[-1]


def read_policies(text: str, attention: AttentionPlace | None = None) -> tuple[Policy, ...]:
    """The same with `attention` there, and where nothing says where with it on the host and on the device."""
    if is_program(text) or (text and Path(text).exists()):
        policy, said = _of_file(text)
    else:
        policy, said = parse_policy(text), False
    if attention is not None:
        return (replace(policy, host_attention=attention == "host"),)
    return (policy,) if said or not policy.cache.elsewhere else (policy, replace(policy, host_attention=False))


def _of_file(path: str) -> tuple[Policy, bool]:
    """The policy, and whether the file says where attention is computed, as programs do of a cache that lies whole on
    the host."""
    from shardwright.ir.elaboration.elaborate import elaborate
    from shardwright.ir.text.parser import parse, read_source
    from shardwright.serving.offloading.plan_files import policy_in

    source = read_source(path)
    with located(source):
        if is_program(path):
            policy = policy_in(elaborate(parse(source)))
            return policy, policy.cache.host == 1.0
        try:
            found: Any = json.loads(source.text)
            policy = policy_of_json(found["policy"])
            weights, cache = (_format_in(found, what) for what in ("weights", "cache"))
            policy = replace(
                policy,
                weight_format=weights,
                cache_format=cache,
                host_attention=found.get("host_attention", True) is True,
            )
            return policy, "host_attention" in found
        except (ValueError, KeyError, TypeError, AttributeError, RecursionError):
            raise fault(
                "bad-policy", "this is neither what offload --plan-only writes nor what it prints as JSON"
            ) from None


def _format_in(plan: Mapping[str, Any], what: str) -> StoredFormat | None:
    """The format of weights or cache in a plan as it is printed. KeyError for none that there is."""
    named = plan.get("formats", {}).get(what)
    if named is not None:
        return {name: name for name in get_args(StoredFormat)}[named]
    return _BITS[plan.get("bits", {}).get(what, 4)] if plan.get("compressed", {}).get(what) is True else None
