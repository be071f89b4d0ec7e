"""A model's graphs once more, with adapters attached: planned, reserved, allocated and lowered.

weights, state ── the model's ──┐
scratch, staging, records, ─────┴─▶ a Part each ─▶ run in place of the model's own, while some
tables ── made here                                sequence has an adapter
"""

from collections.abc import Sequence
from contextlib import ExitStack
from dataclasses import dataclass, replace

import numpy as np

from corral.devices.base import AdapterTables, Backend, Device, ModelBuffers, Program
from corral.engine.holding import allocate_bytes, reserve_bytes
from corral.engine.load import LoadedModel, Part
from corral.errors import UnsupportedModel
from corral.interrupts import deferred
from corral.lora.placing import AdapterLayout
from corral.memory.ledger import Ledger
from corral.memory.lifetime import Lifetime
from corral.memory.plan import place_tables
from corral.memory.records import RecordPool
from corral.models.footprint import attached_footprint, plan_attached
from corral.tensor.attach import ADAPTER_WORDS, Attachment, table_name
from corral.tensor.cut import cut
from corral.tensor.graph import Graph
from corral.tensor.ops import Op

_WORD_BYTES = 8
_PRODUCTS = (Op.MATMUL, Op.MATMUL_ADD)


@dataclass(frozen=True, slots=True, eq=False)
class AttachedPart:
    """A run of a model's layers that can be computed with adapters."""

    device: Device
    backend: Backend
    program: Program
    tables: AdapterTables

    def point(
        self, slot: int, layout: AdapterLayout, address: int, factors: dict[str, int]
    ) -> None:
        """Say that an adapter lies at an address; no evaluation may be under way."""
        for weight, place in layout.slots.items():
            words = address + place.a_offset, address + place.b_offset, place.units, factors[weight]
            self._write(weight, slot, words)

    def forget(self, slot: int, layout: AdapterLayout) -> None:
        """Say that a slot has no adapter any more; no evaluation may be under way."""
        for weight in layout.slots:
            self._write(weight, slot, (0,) * ADAPTER_WORDS)

    def _write(self, weight: str, slot: int, words: Sequence[int]) -> None:
        at = self.tables.layout.offsets[table_name(weight)] + slot * ADAPTER_WORDS * _WORD_BYTES
        self.device.put(self.tables.buffer, at, np.array(words, np.int64).view(np.uint8))


@dataclass(frozen=True, slots=True, eq=False)
class Attached:
    """Programs with adapters, for one attachment."""

    attachment: Attachment
    parts: tuple[AttachedPart, ...]
    closing: ExitStack

    def close(self) -> None:
        """Give back what the programs hold; a second call does nothing."""
        with deferred:
            self.closing.close()


def adaptable(graph: Graph) -> frozenset[str]:
    """Return the names of weights that adapters can change: those of products."""
    return frozenset(node.sources[1].name for node in graph if node.op in _PRODUCTS)


def attach_to(loaded: LoadedModel, attachment: Attachment, ledger: Ledger, owner: str) -> Attached:
    """Make programs of a loaded model with adapters; all of it or nothing.

    Raises:
        UnsupportedModel: if one of its devices cannot attach adapters.
        OutOfMemory: if there is no room beside the model.
    """
    for part in loaded.parts:
        if not part.plan.traits.attaches:
            raise UnsupportedModel(
                f"{part.device.name} computes nothing with adapters yet: merge the adapter into "
                "the model (corral lora merge), or use --device cpu"
            )
    graphs = cut(loaded.design.graph, loaded.layers)
    with ExitStack() as closing:
        pairs = zip(graphs, loaded.parts, strict=True)
        parts = [
            _attach_part(graph, part, attachment, (ledger, owner), closing) for graph, part in pairs
        ]
        return Attached(attachment, tuple(parts), closing.pop_all())


def _attach_part(
    graph: Graph,
    part: Part,
    attachment: Attachment,
    account: tuple[Ledger, str],
    closing: ExitStack,
) -> AttachedPart:
    ledger, owner = account
    plan = plan_attached(graph, part.plan.traits, attachment)
    layout, footprint = place_tables(plan.graph, plan.traits), attached_footprint(plan)
    with deferred:
        reserved = reserve_bytes(footprint, owner, part.device, ledger, closing)
        made = allocate_bytes(footprint, reserved, part.device, ledger, closing)
    tables = AdapterTables(made[Lifetime.ADAPTER], layout)
    records = RecordPool(
        made[Lifetime.RECORDS],
        record_bytes=plan.traits.record_bytes,
        capacity=plan.num_records,
    )
    buffers: ModelBuffers = replace(
        part.buffers,
        scratch=made[Lifetime.SCRATCH],
        staging=made[Lifetime.STAGING],
        records=records,
        tables=tables,
    )
    with deferred:
        program = part.backend.lower(plan, buffers)
        closing.callback(part.backend.release, program)
    return AttachedPart(part.device, part.backend, program, tables)
