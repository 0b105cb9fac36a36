"""Petals' rows of FlexGen's table 13 beside what the model of a swarm gives."""

from __future__ import annotations

from shardwright.cost.hardware.chips import load_chip
from shardwright.cost.offloading.swarm import Network, petals, swarm_tokens_per_s
from shardwright.models.built_in import built_in
from shardwright.prediction.offloading import model_sizes
from shardwright.reproduction.checks import Check, published_lines

TITLE = "FlexGen, table 13: Petals on T4s, by network, token/s of one GPU"


def petals_checks() -> list[Check]:
    """Throughput of one GPU at every prompt, model and network; the four constants are fitted on these rows."""
    chip, swarm = load_chip("t4"), petals()
    made: list[Check] = []
    for line in published_lines("flexgen_table_13_petals.csv"):
        servers, delay, megabits = int(line["servers"]), line["delay_ms"], line["mbit_per_s"]
        sizes = model_sizes(built_in(line["model"]).model, int(line["prompt_len"]), 32)
        network = Network(float(delay) / 1e3, float(megabits) * 1e6 / 8)
        predicted = swarm_tokens_per_s(sizes, chip, servers, network, swarm)
        row = f"{line['model']} petals {line['prompt_len']}, {delay} ms, {megabits} Mbit/s"
        statement = f"{servers} GPU, token/s" if servers == 1 else f"{servers} GPUs, token/s of one"
        made.append(Check("flexgen-13", row, statement, float(line["tokens_per_s"]), predicted, None, "", True))
    return made
