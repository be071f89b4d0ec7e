"""corral, measured on request, in a process of its own like its peer.

`Model.benchmark` times a little more than the peer is timed for: it picks the best token of each
row of logits and turns it into text.
"""

import argparse
from pathlib import Path

import corral
from children import Reply, serve
from corral.config import settings
from corral.devices.cpu.features import host
from corral.engine.model import Model


def main() -> None:
    """Load the model and answer the parent's requests."""
    parser = argparse.ArgumentParser(description=__doc__.split("\n")[0])
    parser.add_argument("model", type=Path)
    parser.add_argument("--threads", type=int, required=True)
    parser.add_argument("--context", type=int, required=True)
    parser.add_argument("--device", default="cpu")
    args = parser.parse_args()

    with Model.load(
        args.model, device=args.device, context=args.context, threads=args.threads
    ) as model:

        def prefill(tokens: int, variant: str) -> Reply:
            return {"seconds": model.benchmark(tokens, 0)[0]}

        def decode(tokens: int, variant: str) -> Reply:
            return {"seconds": model.benchmark(0, tokens)[1]}

        description: Reply = {
            "version": f"corral {corral.__version__}",
            "system": f"instruction set path {settings().cpu or host().path}",
            "variants": [args.device],
        }
        serve(description, {"prefill": prefill, "decode": decode})


if __name__ == "__main__":
    main()
