"""The rule of each opcode."""

from __future__ import annotations

import re
from collections.abc import Callable

from shardwright.backends.hlo.checking.contractions import ContractionStep
from shardwright.backends.hlo.checking.control import ControlStep
from shardwright.backends.hlo.checking.elementwise import ElementwiseStep
from shardwright.backends.hlo.checking.exchanges import ExchangeStep
from shardwright.backends.hlo.checking.shapes import ShapeStep
from shardwright.backends.hlo.checking.values import Value

_OUR_KERNEL = re.compile(r"(attend|rows_written)(\.\d+)?")


class InstructionStep(ElementwiseStep, ShapeStep, ContractionStep, ExchangeStep, ControlStep):
    """An instruction of any opcode."""

    def custom_call(self) -> Value:
        """Slices brought together by libtpu, arrays not yet written, our own kernels; nothing is known of others."""
        if '"ConcatBitcast"' in self.instruction.attributes:
            return self.joined_slices()
        if '"AllocateBuffer"' in self.instruction.attributes:
            return self.unwritten()
        kernel = _OUR_KERNEL.fullmatch(self.instruction.name)
        if kernel is None or '"tpu_custom_call"' not in self.instruction.attributes:
            return self.opaque()
        return self.attention() if kernel[1] == "attend" else self.rows_written()


Step = InstructionStep

RULES: dict[str, Callable[[InstructionStep], Value]] = {
    opcode: rule
    for rule, opcodes in (
        (
            Step.elementwise,
            "abs acos acosh and asin asinh atan atan2 atanh cbrt ceil clamp clz compare cosh cosine erf "
            "exponential-minus-one floor imag is-finite log-plus-one logistic maximum minimum not or popcnt power "
            "remainder round-nearest-afz round-nearest-even rsqrt shift-left shift-right-arithmetic "
            "shift-right-logical sign sine sinh sqrt tan tanh xor",
        ),
        (Step.linear, "copy convert reduce-precision negate real"),
        (Step.additive, "add subtract"),
        (Step.multiplied, "multiply divide"),
        (Step.exponential, "exponential"),
        (Step.logarithm, "log"),
        (Step.select, "select"),
        (Step.constant, "constant"),
        (Step.iota, "iota"),
        (Step.partition, "partition-id"),
        (Step.broadcast, "broadcast"),
        (Step.transpose, "transpose"),
        (Step.reshape, "reshape"),
        (Step.bitcast, "bitcast"),
        (Step.custom_call, "custom-call"),
        (Step.slice, "slice slice-done"),
        (Step.dynamic_slice, "dynamic-slice"),
        (Step.dynamic_update_slice, "dynamic-update-slice"),
        (Step.concatenate, "concatenate"),
        (Step.pad, "pad"),
        (Step.reverse, "reverse"),
        (Step.reduce, "reduce"),
        (Step.dot, "dot"),
        (Step.convolution, "convolution"),
        (Step.gather, "gather"),
        (Step.scatter, "scatter"),
        (Step.sort, "sort"),
        (Step.reduce_window, "reduce-window"),
        (Step.all_reduce, "all-reduce"),
        (Step.all_reduce_start, "all-reduce-start"),
        (Step.reduce_scatter, "reduce-scatter"),
        (Step.all_gather, "all-gather all-gather-start"),
        (Step.all_to_all, "all-to-all"),
        (Step.permute, "collective-permute collective-permute-start"),
        (Step.as_tuple, "tuple"),
        (Step.element, "get-tuple-element"),
        (
            Step.same,
            "all-reduce-done all-gather-done collective-permute-done copy-start copy-done slice-start async-done "
            "async-update opt-barrier optimization-barrier",
        ),
        (Step.call, "fusion call async-start"),
        (Step.conditional, "conditional"),
        (Step.loop, "while"),
    )
    for opcode in opcodes.split()
}
"""The rule of each opcode; those of all others are opaque."""
