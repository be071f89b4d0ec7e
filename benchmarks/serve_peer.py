"""The peer: llama.cpp's own HTTP server as xllamacpp has it, prebuilt for processors with AVX2.

It runs in a virtual environment of its own, which holds xllamacpp and nothing of corral, and ends
when its standard input does. A compiled llama-server is a stronger peer where it can be had.
"""

import argparse
import sys

import xllamacpp


def main() -> None:
    """Serve until the parent closes the pipe."""
    parser = argparse.ArgumentParser(description=__doc__.split("\n")[0])
    parser.add_argument("model")
    parser.add_argument("--port", type=int, required=True)
    parser.add_argument("--parallel", type=int, required=True)
    parser.add_argument("--context", type=int, required=True)
    parser.add_argument("--threads", type=int, required=True)
    parser.add_argument("--clients", type=int, required=True)
    args = parser.parse_args()
    wanted = xllamacpp.CommonParams()
    wanted.model.path = args.model
    wanted.hostnames, wanted.port = ["127.0.0.1"], args.port
    wanted.n_parallel, wanted.n_ctx = args.parallel, args.parallel * args.context
    wanted.cpuparams.n_threads = wanted.cpuparams_batch.n_threads = args.threads
    wanted.n_threads_http = args.clients + 4
    wanted.kv_unified = False
    server = xllamacpp.Server(wanted)
    print(xllamacpp.get_system_info(), flush=True)
    sys.stdin.read()
    del server


if __name__ == "__main__":
    main()
