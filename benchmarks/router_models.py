"""Three models that answer differently, made of one, and a configuration with room for two."""

import shutil
import struct
from pathlib import Path

import corral
from corral.gguf import open_model

NAMES = ("amber", "birch", "cedar")
CONTEXT, PARALLEL = 2048, 4
PROCESS_BYTES = 64 << 20
"""What the configuration says that a worker takes beside its model."""


def make_models(source: Path, folder: Path) -> dict[str, Path]:
    """Write a copy of a model for each name, the norms of one layer stretched differently."""
    with open_model(source) as file:
        norm = file.tensors["blk.1.ffn_norm.weight"]
    made = {}
    for number, name in enumerate(NAMES):
        made[name] = Path(shutil.copyfile(source, folder / f"{name}.gguf"))
        with made[name].open("r+b") as file:
            file.seek(norm.offset)
            values = struct.unpack(f"<{norm.num_elements}f", file.read(norm.size_bytes))
            stretched = [v * (1 + 0.3 * number * (place % 2)) for place, v in enumerate(values)]
            file.seek(norm.offset)
            file.write(struct.pack(f"<{norm.num_elements}f", *stretched))
    return made


def write_config(models: dict[str, Path], folder: Path, *, threads: int) -> Path:
    """Write a configuration whose budget holds two of the models, and return its path."""
    path = next(iter(models.values()))
    plan = corral.plan(path, context=CONTEXT, parallel=PARALLEL, device="cpu")
    budget = int(2.5 * (plan.total_bytes + PROCESS_BYTES))
    lines = [
        "[server]",
        f"process = {PROCESS_BYTES}",
        "min_residency = 2.0",
        "idle = 0.5",
        f'sessions = "{folder / "sessions"}"',
        "[budgets]",
        f"cpu = {budget}",
    ]
    for name, file in models.items():
        lines += [
            f"[models.{name}]",
            f'path = "{file}"',
            'device = "cpu"',
            f"context = {CONTEXT}",
            f"parallel = {PARALLEL}",
            f"threads = {threads}",
        ]
    config = folder / "corral.toml"
    config.write_text("\n".join(lines) + "\n")
    return config
