"""What crosses at both ends of a step: a flight's inputs to the card, chosen tokens back."""

from contextlib import ExitStack, closing
from dataclasses import replace

import numpy as np
import pytest

from corral.devices.base import ModelBuffers
from corral.devices.cuda.input_rules import INSTANCES, give_tokens, pieces, take_inputs
from corral.devices.cuda.launch import Binding
from corral.devices.cuda.traits import SEGMENTS, cuda_traits
from corral.devices.host import array_at
from corral.devices.staging import Staging
from corral.memory.lifetime import Lifetime
from corral.memory.plan import ZEROS, plan_model
from corral.tensor.graph import ShapeClass
from emulation import needs_emulator, prepare_missing, run
from emulation.device import EmulatedDevice
from transformers import batch, transformer

pytestmark = needs_emulator

SHAPES = ShapeClass(rows=300, outputs=6, sequences=6, blocks=40)
BUCKET = 2


@pytest.fixture(scope="module", autouse=True)
def instances():
    """Compile both kernels at once."""
    prepare_missing(INSTANCES)


@pytest.fixture
def at():
    """Return a plan for a bucket of two rows, on memory that is full of ones."""
    with EmulatedDevice(replace(cuda_traits(0), narrow_rows=0)) as device, ExitStack() as stack:
        model = plan_model([transformer(SHAPES)], device.traits, loading_bytes=0)
        (plan,) = model.plans
        scratch, staging = (
            stack.enter_context(closing(device.allocate(model.footprint()[life], life)))
            for life in (Lifetime.SCRATCH, Lifetime.STAGING)
        )
        for buffer in (scratch, staging):
            array_at(buffer.address, (buffer.size_bytes,), np.uint8)[:] = 1
        buffers = ModelBuffers(None, None, scratch, staging, None, model.weights, model.state)
        yield Binding(plan, buffers, bucket=BUCKET)


def inputs_on_card(at):
    """Return the bytes of the card's copy of all inputs."""
    size = at.plan.staging.inputs_bytes
    return array_at(at.buffers.inputs_address(at.plan), (size,), np.uint8)


def test_inputs_of_a_flight_arrive(at):
    """Counts, zeros and what a bucket may have of each input; what is behind stays where it is."""
    staging, layout = Staging(at.plan, at.buffers, 1), at.plan.staging
    inputs = batch((1, 1), (70, 1200), blocks=SHAPES.blocks)
    assert inputs.pop("outputs") == BUCKET
    arrays = {name: np.asarray(value, np.int32) for name, value in inputs.items()}
    array_at(staging.address + layout.offsets[ZEROS], (SEGMENTS,), np.int32)[:] = 0
    staging.write(arrays, BUCKET)
    run(take_inputs(at, 1))
    card = inputs_on_card(at)
    assert card[:16].view(np.int64).tolist() == [BUCKET, BUCKET]
    assert not array_at(at.counters, (SEGMENTS,), np.int32).any()
    for name, values in arrays.items():
        first = layout.offsets[name]
        arrived = card[first : first + values.nbytes].view(np.int32)
        assert np.array_equal(arrived, values.reshape(-1))
    assert (card[layout.offsets["tokens"] + 16 : layout.offsets["tokens"] + 256] == 1).all()


def test_many_slots_are_one_piece(at):
    """A kernel's fields are few: what they cannot name is copied whole."""
    size = at.plan.staging.inputs_bytes
    assert len(pieces(at)) == 8
    assert sum(count for _, count in pieces(at)) < size // 16
    assert pieces(at, most=7) == [(0, size // 16)]


@pytest.mark.parametrize("flight", [0, 1])
def test_chosen_tokens_go_where_their_flight_reads(at, flight):
    """As many as the batch has outputs, and no more."""
    plan, buffers = at.plan, at.buffers
    inputs_on_card(at)[:16].view(np.int64)[:] = 5, 3
    array_at(at.choices, (6,), np.int32)[:] = range(10, 16)
    (launch,) = give_tokens(at, flight)
    run(launch)
    given = buffers.staging.address + plan.staging.choices(flight)
    other = buffers.staging.address + plan.staging.choices(1 - flight)
    ones = 0x01010101
    assert array_at(given, (6,), np.int32).tolist() == [10, 11, 12, ones, ones, ones]
    assert array_at(other, (6,), np.int32).tolist() == [ones] * 6
