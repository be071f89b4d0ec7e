"""The peer: llama.cpp through the low-level functions of llama-cpp-python, measured on request.

It runs in a virtual environment of its own, which holds llama-cpp-python and nothing of corral.
What is timed is what llama-bench times: decoding and waiting for it, no sampling, no copies.
"""

import argparse
import ctypes
import random
import time
from pathlib import Path

import llama_cpp

from children import Reply, serve

FLASH_ATTENTION = {
    "flash attention off": llama_cpp.LLAMA_FLASH_ATTN_TYPE_DISABLED,
    "flash attention on": llama_cpp.LLAMA_FLASH_ATTN_TYPE_ENABLED,
}


class Peer:
    """A loaded model with one context a variant."""

    def __init__(self, path: Path, *, threads: int, context: int) -> None:
        llama_cpp.llama_backend_init()
        parameters = llama_cpp.llama_model_default_params()
        parameters.n_gpu_layers = 0
        self.model = llama_cpp.llama_model_load_from_file(str(path).encode(), parameters)
        if not self.model:
            raise SystemExit(f"llama.cpp cannot load {path}")
        self.contexts = {
            name: self._context(flash, threads, context) for name, flash in FLASH_ATTENTION.items()
        }
        vocabulary = llama_cpp.llama_vocab_n_tokens(llama_cpp.llama_model_get_vocab(self.model))
        numbers = random.Random(0)
        self.tokens = (llama_cpp.llama_token * context)(
            *(numbers.randrange(vocabulary) for _ in range(context))
        )

    def _context(self, flash: int, threads: int, context: int) -> object:
        parameters = llama_cpp.llama_context_default_params()
        parameters.n_ctx = context
        parameters.n_batch = 2048
        parameters.n_ubatch = 512
        parameters.n_threads = parameters.n_threads_batch = threads
        parameters.flash_attn_type = flash
        made = llama_cpp.llama_init_from_model(self.model, parameters)
        if not made:
            raise SystemExit("llama.cpp cannot make a context")
        return made

    def prefill(self, tokens: int, variant: str) -> Reply:
        """Return the seconds that one batch of tokens takes, from empty."""
        return self._timed(self.contexts[variant], batches=1, batch_tokens=tokens)

    def decode(self, tokens: int, variant: str) -> Reply:
        """Return the seconds that tokens one by one take, from empty."""
        return self._timed(self.contexts[variant], batches=tokens, batch_tokens=1)

    def _timed(self, context: object, *, batches: int, batch_tokens: int) -> Reply:
        llama_cpp.llama_memory_clear(llama_cpp.llama_get_memory(context), True)
        started = time.perf_counter()
        for number in range(batches):
            tokens = self._tokens_from(number)
            batch = llama_cpp.llama_batch_get_one(tokens, batch_tokens)
            if llama_cpp.llama_decode(context, batch):
                return {"error": f"llama_decode failed at batch {number}"}
            llama_cpp.llama_synchronize(context)
        return {"seconds": time.perf_counter() - started}

    def _tokens_from(self, first: int) -> object:
        offset = first * ctypes.sizeof(llama_cpp.llama_token)
        return ctypes.cast(ctypes.byref(self.tokens, offset), ctypes.POINTER(llama_cpp.llama_token))


def main() -> None:
    """Load the model and answer the parent's requests."""
    parser = argparse.ArgumentParser(description=__doc__.split("\n")[0])
    parser.add_argument("model", type=Path)
    parser.add_argument("--threads", type=int, required=True)
    parser.add_argument("--context", type=int, required=True)
    args = parser.parse_args()
    peer = Peer(args.model, threads=args.threads, context=args.context)
    description: Reply = {
        "version": f"llama-cpp-python {llama_cpp.__version__}",
        "system": llama_cpp.llama_print_system_info().decode(),
        "variants": list(peer.contexts),
    }
    serve(description, {"prefill": peer.prefill, "decode": peer.decode})


if __name__ == "__main__":
    main()
