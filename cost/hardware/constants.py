"""Six constants that say how far from its datasheet a chip runs, and the time of a kernel under them."""

from __future__ import annotations

from dataclasses import dataclass, fields


@dataclass(frozen=True, slots=True)
class Constants:
    """How a chip and its compiler run kernels. The defaults are the datasheet's rates with nothing overlapped.

    `compute_efficiency`, `memory_efficiency` and `link_efficiency` are shares of the chip's rates that large matrix
    products, large reads and large collectives reach. `latency_factor` multiplies the chip's latency of a hop or a
    message. `kernel_overhead_s` is what starting a kernel takes. `unoverlapped` is the share of the shorter of a
    kernel's compute and memory times that the longest does not hide: 0 is the roofline of Williams et al. (2009),
    1 a kernel that computes only after all its operands have come.
    """

    compute_efficiency: float = 1.0
    memory_efficiency: float = 1.0
    link_efficiency: float = 1.0
    latency_factor: float = 1.0
    kernel_overhead_s: float = 0.0
    unoverlapped: float = 1.0


DATASHEET = Constants()
NAMES = tuple(field.name for field in fields(Constants))


@dataclass(frozen=True, slots=True)
class KernelDemand:
    """The time that one execution of a kernel asks of a chip, in seconds at the datasheet's rates.

    A kernel has `compute_s` (padding to the chip's tiles included), `vector_s` (integers made floats on the way into a
    product) and `memory_s`; of memory, `behind_s` for what is computed after its product and `beside_s` for what
    nothing hides; a collective `transfer_s` and `latency_s`, a copy between memories `copy_s`, and neither is a kernel.
    Demands of several kernels add up only where they bound alike, so keep them apart.
    """

    compute_s: float = 0.0
    vector_s: float = 0.0
    memory_s: float = 0.0
    transfer_s: float = 0.0
    latency_s: float = 0.0
    copy_s: float = 0.0
    kernels: int = 1
    behind_s: float = 0.0
    beside_s: float = 0.0


@dataclass(frozen=True, slots=True)
class KernelTimes:
    """Seconds of one execution: in all, and of each resource by itself."""

    total: float
    compute: float
    memory: float
    communication: float
    copy: float = 0.0

    @property
    def bound(self) -> str:
        """The resource that takes the most of it: `compute`, `memory`, `link`, `copy`, or `overhead` where the rest is
        less than that."""
        parts = {"compute": self.compute, "memory": self.memory, "link": self.communication, "copy": self.copy}
        most = max(parts, key=lambda part: parts[part])
        return most if 2 * parts[most] >= self.total else "overhead"


def times_of(demand: KernelDemand, constants: Constants) -> KernelTimes:
    """The time of one execution of a kernel or collective under these constants.

    A kernel takes the longest of its matrix units', vector units' and memory's times, the unoverlapped share of the
    others and of what is read and written behind its product, what is beside it, and the overhead of starting it;
    `compute` is the longer of the units' two. A collective takes its transfer
    and its latencies, as in Chen 2022, "latency calculations"; a copy between memories what its link allows.
    """
    matrix = demand.compute_s / constants.compute_efficiency
    vector = demand.vector_s / constants.compute_efficiency
    memory = demand.memory_s / constants.memory_efficiency
    communication = demand.transfer_s / constants.link_efficiency + demand.latency_s * constants.latency_factor
    longest = max(matrix, vector, memory)
    total = longest + constants.unoverlapped * (matrix + vector + memory - longest) + communication + demand.copy_s
    behind, beside = demand.behind_s / constants.memory_efficiency, demand.beside_s / constants.memory_efficiency
    total += constants.unoverlapped * behind + beside + demand.kernels * constants.kernel_overhead_s
    return KernelTimes(total, max(matrix, vector), memory + behind + beside, communication, demand.copy_s)
