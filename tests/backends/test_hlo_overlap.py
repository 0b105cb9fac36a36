"""What runs beside collectives, in modules as the compilers of TPUs and GPUs schedule them."""

from __future__ import annotations

from shardwright.backends.hlo.module import parse
from shardwright.backends.hlo.overlap import kernels_beside
from shardwright.explaining.explain import explain_text
from shardwright.ir.diagnostics import Source

CYCLES = 'backend_config={"window_config":{"estimated_cycles":"500"}}'
PERMUTED = f"""HloModule jit_f, is_scheduled=true, num_partitions=2

ENTRY %main (p: bf16[8,128], w: bf16[128,128]) -> bf16[8,128] {{
  %p = bf16[8,128] parameter(0)
  %w = bf16[128,128] parameter(1)
  %s = (bf16[8,128], bf16[8,128], u32[], u32[]) collective-permute-start(%p), source_target_pairs={{{{0,1}},{{1,0}}}}
  %a = bf16[8,128] copy(%p), {CYCLES}
  %b = bf16[8,128] bitcast(%a)
  %d = bf16[8,128] collective-permute-done(%s)
  %g = bf16[16,128] all-gather(%d), replica_groups={{{{0,1}}}}, dimensions={{0}}
  ROOT %c = bf16[8,128] copy(%d), {CYCLES}
}}
"""
RECEIVED = PERMUTED.replace(
    "%s = (bf16[8,128], bf16[8,128], u32[], u32[]) collective-permute-start(%p)",
    "%t = token[] after-all()\n  %s = (bf16[8,128], u32[], token[]) recv(%t)",
).replace(
    "%d = bf16[8,128] collective-permute-done(%s)",
    "%e = (bf16[8,128], token[]) recv-done(%s)\n  %d = bf16[8,128] get-tuple-element(%e), index=0",
)
FUSED = f"""HloModule jit_f, is_scheduled=true, num_partitions=2

%start (x: bf16[8,128]) -> (bf16[16,128], u32[]) {{
  %x = bf16[8,128] parameter(0)
  %g0 = bf16[16,128] all-gather(%x), replica_groups={{{{0,1}}}}, dimensions={{0}}, frontend_attributes={{chain_id="0"}}
  ROOT %c0 = (bf16[16,128], u32[]) custom-call(%g0), custom_call_target="AsyncCollectiveStart"
}}

%middle (x: bf16[16,128], u: u32[]) -> (bf16[8,8], bf16[16,128], u32[]) {{
  %x = bf16[16,128] parameter(0)
  %u = u32[] parameter(1)
  %g1 = bf16[16,128] all-gather(%x), replica_groups={{{{0,1}}}}, dimensions={{0}}, frontend_attributes={{chain_id="0"}}
  ROOT %t = (bf16[8,8], bf16[16,128], u32[]) tuple(%x, %g1, %u)
}}

%end (x: bf16[16,128], u: u32[]) -> bf16[16,128] {{
  %x = bf16[16,128] parameter(0)
  %u = u32[] parameter(1)
  %g2 = bf16[16,128] all-gather(%x), replica_groups={{{{0,1}}}}, dimensions={{0}}, frontend_attributes={{chain_id="0"}}
  ROOT %c2 = bf16[16,128] custom-call(%g2, %u), custom_call_target="AsyncCollectiveDone"
}}

ENTRY %main (p: bf16[8,128]) -> bf16[16,128] {{
  %p = bf16[8,128] parameter(0)
  %before = bf16[8,128] copy(%p), {CYCLES}
  %s = (bf16[16,128], u32[]) fusion(%before), kind=kCustom, calls=%start
  %s0 = bf16[16,128] get-tuple-element(%s), index=0
  %s1 = u32[] get-tuple-element(%s), index=1
  %m = (bf16[8,8], bf16[16,128], u32[]) fusion(%s0, %s1), kind=kOutput, calls=%middle, {CYCLES}
  %m0 = bf16[8,8] get-tuple-element(%m), index=0
  %m1 = bf16[16,128] get-tuple-element(%m), index=1
  %m2 = u32[] get-tuple-element(%m), index=2
  %other = bf16[8,8] copy(%m0), {CYCLES}
  %e = bf16[16,128] fusion(%m1, %m2), kind=kCustom, calls=%end
  ROOT %r = bf16[16,128] copy(%e), {CYCLES}
}}
"""
GPU = """HloModule jit_f, is_scheduled=true, num_partitions=2

%fused (x: f16[8,128]) -> f16[8,128] {
  ROOT %x = f16[8,128] parameter(0)
}

ENTRY %main (p: f16[8,128]) -> f16[16,128] {
  %p = f16[8,128] parameter(0)
  %s = (f16[8,128], f16[16,128]) all-gather-start(%p), replica_groups={{0,1}}, dimensions={0}, \
backend_config={"collective_backend_config":{"is_sync":SYNC}}
  %k = f16[8,128] fusion(%p), kind=kLoop, calls=%fused
  %q = f16[8,128] custom-call(%k, %k), custom_call_target="__cublas$gemm"
  ROOT %d = f16[16,128] all-gather-done(%s)
}
"""


def test_a_permute_has_the_kernels_until_its_end_and_a_gather_in_one_piece_none() -> None:
    assert kernels_beside(parse(PERMUTED)) == {"s": ("a",)}
    (func,) = explain_text(Source("dump.txt", PERMUTED)).functions
    assert [(c.op, c.beside, c.beside_s) for c in func.collectives] == [
        ("permute", ("a",), None),
        ("all_gather", (), None),
    ]
    assert func.as_json()["collectives"][0]["beside"] == ["a"]


def test_what_is_received_has_the_kernels_until_it_is_there() -> None:
    assert kernels_beside(parse(RECEIVED)) == {"s": ("a",)}
    (func,) = explain_text(Source("dump.txt", RECEIVED)).functions
    assert [(c.op, c.bytes_received) for c in func.collectives] == [("permute", 2048), ("all_gather", 2048)]


def test_a_gather_that_fusions_carry_on_ends_with_its_last() -> None:
    assert kernels_beside(parse(FUSED)) == {"g0": ("m", "other")}
    (func,) = explain_text(Source("dump.txt", FUSED)).functions
    assert [(c.op, c.beside) for c in func.collectives] == [("all_gather", ("m", "other"))]


def test_what_a_gpu_marks_as_synchronous_has_nothing_beside_it() -> None:
    assert kernels_beside(parse(GPU.replace("SYNC", "false"))) == {"s": ("k", "q")}
    assert kernels_beside(parse(GPU.replace("SYNC", "true"))) == {}
