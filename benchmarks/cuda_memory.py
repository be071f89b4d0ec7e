"""What a card holds at each step of a model's life, what each kind of reading takes, and a context.

    python benchmarks/cuda_memory.py MODEL.gguf [--device cuda:0] [--context 8192]

The model is held, not run. Each step is compared with what was planned. Last line: JSON.
"""

import argparse
import json
import statistics
import time

import corral
from corral.config import settings
from corral.devices.context_cost import ContextCosts
from corral.devices.nvml import process_nvml
from corral.devices.probe import Probe
from corral.engine.load import hold_file
from corral.gguf import open_model
from corral.memory.ledger import Ledger
from corral.memory.lifetime import Lifetime
from corral.models.footprint import choose_limits
from corral.paths import CacheTree
from machine import machine

MIB = 1 << 20


def timed(call, repeat):
    """Return the median seconds of a call, and what it gave last."""
    times = []
    for _ in range(repeat):
        started = time.perf_counter()
        value = call()
        times.append(time.perf_counter() - started)
    return statistics.median(times), value


def hold(args, used, steps):
    """Put the model on the card and take it away again, noting what the card holds."""
    from corral.devices import registry

    device = registry.open(args.device)
    steps.append(("driver loaded", used()))
    ledger = Ledger()
    started = time.perf_counter()
    with open_model(args.model) as file:
        limits = choose_limits(file.metadata, context=args.context, kv_type="f16")
        model = hold_file(file, limits, device, ledger)
    seconds = time.perf_counter() - started
    steps.append(("uploaded", used()))
    entries = {e.lifetime.value: (e.planned_bytes, e.allocated_bytes) for e in ledger.statistics()}
    file_bytes = sum(t.size_bytes for t in file.tensors.values())
    reads = {"driver, context alive": timed(device.context.read, 100)[0]}
    model.close()
    steps.append(("closed", used()))
    is_active = device.context.statistics().is_active
    device.close()
    return {
        "ledger": entries,
        "upload_s": seconds,
        "file_bytes": file_bytes,
        "context_is_active_after": is_active,
        "reads_s": reads,
    }


def main():
    """Measure, print a table, and a JSON line."""
    parser = argparse.ArgumentParser(description=__doc__.split("\n")[0])
    parser.add_argument("model")
    parser.add_argument("--device", default="cuda:0")
    parser.add_argument("--context", type=int, default=8192)
    args = parser.parse_args()
    nvml = process_nvml()
    uuid = corral.devices()[1].uuid

    def used():
        return nvml.memory(uuid).used_bytes

    steps = [("imported", used())]
    listing_s, devices = timed(corral.devices, 50)
    steps.append(("devices()", used()))
    nvml_s, _ = timed(lambda: nvml.memory(uuid), 200)
    costs = ContextCosts(CacheTree(settings().cache).contexts_file())
    probe_s, reading = timed(lambda: Probe(costs).attempt(uuid), 3)
    cost = costs.measure(Probe(costs), uuid)
    steps.append(("probed", used()))
    plan_s, plan = timed(
        lambda: corral.plan(args.model, context=args.context, device=args.device), 1
    )
    steps.append(("plan()", used()))
    found = hold(args, used, steps)
    planned = {row.lifetime: row.bytes for row in plan.rows}
    on_card = sum(size for life, size in planned.items() if life != Lifetime.STAGING.value)
    uploaded = dict(steps)["uploaded"] - dict(steps)["imported"]
    result = {
        "machine": machine(),
        "card": devices[1].title,
        "driver": nvml.driver_version(),
        "steps_bytes": dict(steps),
        "context_cost_bytes": cost,
        "planned_bytes": planned,
        "planned_on_card_bytes": on_card,
        "held_on_card_bytes": uploaded,
        "difference": (uploaded - on_card) / on_card,
        "plan_s": plan_s,
        "devices_s": listing_s,
        "nvml_read_s": nvml_s,
        "probe_s": probe_s,
        "probe": str(reading),
        **found,
    }
    for name, size in steps:
        print(f"{name:16} {size / MIB:12.3f} MiB on the card")
    print(f"planned on the card {on_card / MIB:.3f} MiB, held {uploaded / MIB:.3f} MiB")
    print(f"a context costs {(cost or 0) / MIB:.3f} MiB")
    for name in ("devices_s", "nvml_read_s", "probe_s", "plan_s", "upload_s"):
        print(f"{name:16} {result[name] * 1e3:12.3f} ms")
    print(json.dumps(result))


if __name__ == "__main__":
    main()
