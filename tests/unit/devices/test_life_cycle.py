"""How devices begin and end: every byte counted, nothing used after its end."""

import gc
import warnings

import pytest

from corral.devices import registry
from corral.errors import CapacityExceeded, Closed, InternalError, OutOfMemory
from corral.memory.ledger import Ledger
from corral.memory.lifetime import Lifetime
from evaluation import Evaluation
from transformers import batch, transformer

DEVICES = ("reference", "null", "cpu")


@pytest.fixture(params=DEVICES)
def device(request):
    with registry.open(request.param) as device:
        yield device
        assert device.allocated_bytes == 0


def test_a_plan_equals_its_allocation_to_the_byte(device):
    """What the footprint says, the device allocates, and the ledger agrees."""
    graph, ledger = transformer(), Ledger()
    with Evaluation(device, graph) as evaluation:
        footprint = evaluation.model.footprint()
        assert device.allocated_bytes == sum(footprint.values())
        free = device.memory().free_bytes
        reserved = ledger.reserve("m", device.name, footprint, free_bytes=free)
        buffers = evaluation.buffers
        for buffer in (buffers.weights, buffers.state, buffers.scratch, buffers.staging):
            ledger.commit(reserved, buffer.lifetime, buffer.size_bytes)
    assert device.allocated_bytes == 0


def test_buffers_are_rounded_up_to_the_granularity(device):
    """One byte takes a page, and closing twice gives it back once."""
    buffer = device.allocate(1, Lifetime.SCRATCH)
    assert buffer.size_bytes == device.allocated_bytes == device.traits.granularity
    buffer.close()
    buffer.close()
    assert device.allocated_bytes == 0


def test_a_closed_buffer_has_no_address(device):
    """Reading the address of bytes that were given back raises Closed."""
    buffer = device.allocate(1, Lifetime.SCRATCH)
    buffer.close()
    with pytest.raises(Closed, match="scratch"):
        _ = buffer.address


def test_an_absurd_allocation_is_refused(device):
    """More than the address space holds is OutOfMemory, and nothing is counted."""
    with pytest.raises(OutOfMemory):
        device.allocate(1 << 62, Lifetime.WEIGHTS)
    assert device.allocated_bytes == 0


def test_a_closed_device_refuses_everything(device):
    """After close, allocating, uploading and opening executors raise Closed."""
    device.close()
    device.close()
    for call in (
        lambda: device.allocate(1, Lifetime.SCRATCH),
        lambda: device.upload(None, None, 0, memoryview(b"")),
        device.backend,
        device.__enter__,
    ):
        with pytest.raises(Closed):
            call()


def test_a_closed_backend_refuses_everything(device):
    """After close, lowering, running and reading raise Closed."""
    with Evaluation(device, transformer()) as evaluation:
        backend, program = evaluation.backend, evaluation.program
        backend.close()
        backend.close()
        with pytest.raises(Closed):
            backend.lower(evaluation.plan, evaluation.buffers)
        with pytest.raises(Closed):
            evaluation.run(**batch((1,)))
        with pytest.raises(Closed):
            backend.read(program, evaluation.graph.outputs[0], 1)


@pytest.mark.parametrize("name", ["weights", "state", "scratch", "staging"])
def test_a_program_outlives_no_buffer(device, name):
    """Running on a buffer that was closed raises Closed instead of touching memory that is gone."""
    with Evaluation(device, transformer()) as evaluation:
        getattr(evaluation.buffers, name).close()
        with pytest.raises(Closed, match=name):
            evaluation.backend.run(evaluation.program, {}, 0)


def test_closing_a_device_before_its_buffers_warns(device):
    """The warning says how many bytes are left."""
    buffer = device.allocate(1, Lifetime.SCRATCH)
    with pytest.warns(ResourceWarning, match="before 4096 bytes"):
        device.close()
    buffer.close()


@pytest.mark.parametrize("name", DEVICES)
def test_forgetting_a_device_warns(name):
    """A device that is collected while open says so."""
    with warnings.catch_warnings(record=True) as caught:
        warnings.simplefilter("always")
        registry.open(name)
        gc.collect()
    assert [w.category for w in caught] == [ResourceWarning]


def test_records_beyond_the_plan_are_refused(device):
    """Lowering a plan twice into one pool raises CapacityExceeded."""
    with Evaluation(device, transformer()) as evaluation:
        assert evaluation.buffers.records.statistics().used > 0
        with pytest.raises(CapacityExceeded):
            evaluation.backend.lower(evaluation.plan, evaluation.buffers)


def test_a_batch_larger_than_the_plan_is_refused(device):
    """An input longer than planned raises CapacityExceeded."""
    with Evaluation(device, transformer()) as evaluation, pytest.raises(CapacityExceeded):
        evaluation.run(**batch((30, 30)))


def test_a_batch_that_contradicts_itself_is_refused(device):
    """Inputs of different lengths, or one that is missing, raise InternalError."""
    with Evaluation(device, transformer()) as evaluation:
        inputs = batch((3,))
        with pytest.raises(InternalError, match="positions has 2 rows, the batch has 3"):
            evaluation.run(**inputs | {"positions": [0, 1]})
        del inputs["tables"]
        with pytest.raises(InternalError, match="tables is missing"):
            evaluation.run(**inputs)


def test_the_memory_reading_names_its_source(device):
    """Total and free are bytes, and the source says where the numbers are from."""
    reading = device.memory()
    assert 0 < reading.free_bytes <= reading.total_bytes
    assert reading.source


def test_lowering_reports_progress(device):
    """The last report, if there was anything to do, says that all of it is done."""
    seen = []
    with Evaluation(device, transformer()) as evaluation:
        evaluation.buffers.records._used = 0
        evaluation.backend.lower(
            evaluation.plan, evaluation.buffers, progress=lambda *report: seen.append(report)
        )
    for stage, done, total in seen[-1:]:
        assert stage
        assert done == total > 0
