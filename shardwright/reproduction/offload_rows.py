"""FlexGen's published tables as rows: what ran under which policy, how fast, and what the cost model gives for it."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass, replace
from typing import Literal

from shardwright.cost.hardware.chips import load_machine
from shardwright.cost.hardware.runtimes import Runtime, load_runtime
from shardwright.cost.offloading.policy import POLICY_KEYS, Policy, parse_policy
from shardwright.cost.offloading.pricing import OffloadSetting, PricedPolicy
from shardwright.ir.diagnostics import DiagnosticError
from shardwright.prediction.models import model_of
from shardwright.prediction.offloading import priced, setting_of
from shardwright.reproduction.checks import Check, published_lines


@dataclass(frozen=True)
class OffloadRow:
    """One measurement: `value` in token/s or s by `unit`, 0 where it ran out of memory; `calibrated` where the
    constants are fitted on it."""

    table: str
    name: str
    model: str
    system: str
    policy: Policy
    value: float
    unit: Literal["token/s", "s"] = "token/s"
    prompt: int = 512
    generated: int = 32
    machine: str = "t4"
    gpus: int = 1
    page_cache: bool = True
    overlapped: bool = True
    phase: Literal["both", "prefill", "decode"] = "both"
    calibrated: bool = False
    remark: str = ""

    @property
    def runtime(self) -> Runtime:
        runtime = load_runtime(self.system.removesuffix("-4bit"))
        return runtime if self.overlapped else replace(runtime, overlapped=False)

    @property
    def compressed(self) -> bool:
        return self.system.endswith("-4bit")

    def setting(self) -> OffloadSetting:
        return setting_of(
            model_of(self.model).model,
            load_machine(self.machine),
            self.runtime,
            self.prompt,
            self.generated,
            page_cache=self.page_cache,
            devices=self.gpus,
        )

    def plan(self) -> PricedPolicy | None:
        """The policy's price, None where it does not fit."""
        try:
            return priced(self.setting(), self.policy, compress=self.compressed)
        except DiagnosticError as error:
            if all(diagnostic.code == "does-not-fit" for diagnostic in error.diagnostics):
                return None
            raise

    def predicted(self) -> float:
        """In the row's unit; 0 where the policy does not fit."""
        plan = self.plan()
        if plan is None:
            return 0.0
        if self.unit == "token/s":
            return plan.tokens_per_s
        return {"both": plan.seconds, "prefill": plan.prefill_s, "decode": plan.decode_s}[self.phase]


def table_2() -> list[OffloadRow]:
    """Generation throughput of every system; FlexGen's rows at prompt 512 are fitted on."""
    return [
        OffloadRow(
            "flexgen-2",
            f"{line['model']} {line['system']} {line['prompt_len']}",
            line["model"],
            line["system"],
            _policy(line),
            _value(line["tokens_per_s"]),
            prompt=int(line["prompt_len"]),
            calibrated=line["prompt_len"] == "512",
        )
        for line in published_lines("flexgen_table_2.csv")
    ]


def table_8() -> list[OffloadRow]:
    """Prefill and decode of OPT-175B with overlap disabled."""
    policy = parse_policy("32,8,0,50,0,0,0,100")
    made: list[OffloadRow] = []
    for line in published_lines("flexgen_table_8.csv"):
        phase: Literal["prefill", "decode"] = "prefill" if line["stage"] == "prefill" else "decode"
        made.append(
            OffloadRow(
                "flexgen-8",
                f"opt-175b {phase}, no overlap",
                "opt-175b",
                "flexgen",
                policy,
                float(line["total"]),
                "s",
                overlapped=False,
                phase=phase,
                calibrated=True,
            )
        )
    return made


def table_19() -> list[OffloadRow]:
    """The time of a block of OPT-175B at each block size, under the policy that this size has elsewhere."""
    return [
        OffloadRow(
            "flexgen-19",
            f"{line['system']} block {line['block']}",
            "opt-175b",
            line["system"],
            _policy(line),
            float(line["latency_s"]),
            "s",
            calibrated=True,
            remark="the policy is not given",
        )
        for line in published_lines("flexgen_table_19.csv")
    ]


def table_21() -> list[OffloadRow]:
    """Throughput under each policy with the page cache off. Where fewer than three digits were published, it is that
    of table 22's time."""
    made: list[OffloadRow] = []
    for line, model, size in _ablation():
        published, latency, policy = line[f"tps_{size}"], _value(line[f"latency_{size}"]), _policy(line)
        rough = latency > 0 and len(published.replace(".", "").lstrip("0")) < 3
        value = policy.block * 32 / latency if rough else _value(published)
        remark = "from the time in table 22" if rough else ""
        made.append(_ablated("flexgen-21", model, policy, value, "token/s", remark))
    return made


def table_22() -> list[OffloadRow]:
    """The time of a block under each policy with the page cache off."""
    return [
        _ablated("flexgen-22", model, _policy(line), _value(line[f"latency_{size}"]), "s")
        for line, model, size in _ablation()
    ]


def table_23() -> list[OffloadRow]:
    """One technique left out at a time. Nothing is fitted on these rows."""
    return [
        OffloadRow(
            "flexgen-23",
            f"{line['model']} without {line['left_out']}",
            line["model"],
            "flexgen",
            replace(_policy(line), host_attention=line["left_out"] != "host attention"),
            float(line["tokens_per_s"]),
            overlapped=line["left_out"] != "overlap",
        )
        for line in published_lines("flexgen_table_23.csv")
    ]


TABLES: Mapping[str, tuple[str, Callable[[], list[OffloadRow]]]] = {
    "flexgen-2": ("FlexGen (Sheng et al. 2023), table 2: throughput on a T4, token/s", table_2),
    "flexgen-8": ("FlexGen, table 8: OPT-175B without overlap, s", table_8),
    "flexgen-19": ("FlexGen, table 19: OPT-175B, the time of a block by its size, s", table_19),
    "flexgen-21": ("FlexGen, table 21: throughput by policy, page cache off, token/s", table_21),
    "flexgen-22": ("FlexGen, table 22: the time of a block by policy, page cache off, s", table_22),
    "flexgen-23": ("FlexGen, table 23: one technique left out at a time, token/s", table_23),
}


def checks(name: str) -> list[Check]:
    """A table's rows beside what is predicted."""
    return compared(TABLES[name][1]())


def compared(rows: Iterable[OffloadRow]) -> list[Check]:
    """Rows beside what is predicted; 0 on either side says that it runs out of memory."""
    made: list[Check] = []
    for row in rows:
        predicted = row.predicted()
        ran_out = [what for what, value in (("published", row.value), ("predicted", predicted)) if not value]
        notes = [f"out of memory, {' and '.join(ran_out)}"] if ran_out else []
        remark = "; ".join([*notes, *([row.remark] if row.remark else [])])
        statement = f"{row.policy}, {row.unit}"
        made.append(Check(row.table, row.name, statement, row.value, predicted, None, remark, row.calibrated))
    return made


def _ablation() -> list[tuple[Mapping[str, str], str, str]]:
    return [
        (line, model, size)
        for line in published_lines("flexgen_table_21.csv")
        for model, size in (("opt-30b", "30b"), ("opt-175b", "175b"))
        if line[f"tps_{size}"]
    ]


def _ablated(
    table: str, model: str, policy: Policy, value: float, unit: Literal["token/s", "s"], remark: str = ""
) -> OffloadRow:
    return OffloadRow(
        table,
        f"{model} {policy}",
        model,
        "flexgen",
        policy,
        value,
        unit,
        page_cache=False,
        calibrated=True,
        remark=remark,
    )


def _policy(line: Mapping[str, str]) -> Policy:
    return parse_policy(",".join(line[column] for column in POLICY_KEYS))


def _value(text: str) -> float:
    return 0.0 if text in {"OOM", ""} else float(text)
