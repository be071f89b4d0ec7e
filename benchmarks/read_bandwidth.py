"""How fast threads can read memory: the limit of decoding, which reads every weight a token.

    python benchmarks/read_bandwidth.py [--bytes N]

The reading kernel is written in the language of corral's own kernels, and the memory is allocated
as weights are. Last line: JSON.
"""

import argparse
import json
import os
import time
from concurrent.futures import ThreadPoolExecutor
from statistics import median

from children import Reply, serve
from corral.devices.cpu.compile import Code, object_code
from corral.devices.cpu.features import host
from corral.devices.cpu.native import call
from corral.devices.cpu.simd import Kernel, Value, build, i64
from corral.devices.host import HostMemory, array_at
from corral.memory.lifetime import Lifetime

LANES = 8
STREAMS = 8
STEP_BYTES = 8 * LANES * STREAMS
PREFETCH_BYTES = (0, 1024, 4096)
"""Distances to try: hardware fetches ahead too, but stops at the end of a page."""
FIELDS = ("buffer", "bytes", "sums")


def emit(k: Kernel, record: Value, thread: Value, threads: Value, *, prefetch: int) -> None:
    """Read this thread's share of the buffer and store a sum of it, so that it is really read."""
    f = k.fields(record, FIELDS)
    first, last = k.split(f.bytes // STEP_BYTES, thread, threads)
    sums = [k.variable(i64.x(LANES)) for _ in range(STREAMS)]
    with k.range(f.buffer + first * STEP_BYTES, f.buffer + last * STEP_BYTES, STEP_BYTES) as at:
        for number, total in enumerate(sums):
            offset = number * 8 * LANES
            if prefetch:
                k.prefetch(at + (offset + prefetch))
            total.value = total.value + k.load(i64.x(LANES), at + offset)
    for number, total in enumerate(sums):
        to = f.sums + (thread * STREAMS + number) * (8 * LANES)
        k.store(to, total.value)


class Reader:
    """A buffer, and kernels that read it."""

    def __init__(self, size_bytes: int) -> None:
        self._code = Code()
        self._kernels = {distance: self._compile(distance) for distance in PREFETCH_BYTES}
        memory = HostMemory("cpu")
        self._buffer = memory.allocate(size_bytes, Lifetime.WEIGHTS)
        array_at(self._buffer.address, (size_bytes,), "u1")[:] = 1
        self._sums = memory.allocate(len(os.sched_getaffinity(0)) * STEP_BYTES, Lifetime.SCRATCH)

    def _compile(self, distance: int) -> int:
        name = f"read_{distance}"

        def body(*arguments: Value) -> None:
            emit(*arguments, prefetch=distance)

        self._code.add(object_code(build(host(), name, body), host()))
        return self._code.address(name)

    def read(self, size_bytes: int, threads: int, passes: int = 7) -> Reply:
        """Return the median GB/s of some passes with the best distance of prefetching."""
        assert size_bytes <= self._buffer.size_bytes
        record = (self._buffer.address, size_bytes, self._sums.address)
        with ThreadPoolExecutor(threads) as pool:

            def seconds(distance: int) -> float:
                kernel = self._kernels[distance]
                started = time.perf_counter()
                work = [
                    pool.submit(call, kernel, record, thread=number, threads=threads)
                    for number in range(threads)
                ]
                for share in work:
                    share.result()
                return time.perf_counter() - started

            times = {d: median(seconds(d) for _ in range(passes)) for d in PREFETCH_BYTES}
        fastest = min(times, key=times.__getitem__)
        return {"gb_per_s": size_bytes / times[fastest] / 1e9, "prefetch_bytes": fastest}


def main() -> None:
    """Measure once, or on a parent's requests."""
    parser = argparse.ArgumentParser(description=__doc__.split("\n")[0])
    parser.add_argument("--bytes", type=int, default=1 << 30)
    parser.add_argument("--serve", action="store_true", help="answer requests on standard input")
    args = parser.parse_args()
    reader = Reader(args.bytes)
    if args.serve:
        serve({"system": host().path}, {"read": reader.read})
        return
    results = {}
    for threads in sorted({1, len(os.sched_getaffinity(0))}):
        results[str(threads)] = reader.read(args.bytes, threads)
        print(f"{threads} thread(s): {results[str(threads)]['gb_per_s']:.1f} GB/s")
    print(json.dumps({"read": results, "bytes": args.bytes}))


if __name__ == "__main__":
    main()
