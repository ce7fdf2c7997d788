"""Adapters from disk: reads of real safetensors files, from the page cache and cold, parsing, pinning and packing."""

from __future__ import annotations

import os
import shutil
import tempfile
import time
from collections.abc import Callable
from pathlib import Path

import torch

from simlora.scenario.model import ModelSpec

from .adapters import Pair, host_adapter
from .bench import Bench, Rows, row
from .grid import model_named
from .sampling import Stats, repeat, stats
from .session import SkipItemError

PACKED = {"qkv": ("q_proj", "k_proj", "v_proj"), "gate_up": ("gate_proj", "up_proj")}
"""Modules that engines fuse; the others stay as they are."""
FILES = 4
"""Adapters are read in turn: engines do not read the same one again and again."""
PATIENCE_S = 1.0
Tensors = dict[str, torch.Tensor]


def adapter_reads(bench: Bench, model: str, rank: int) -> Rows:
    """Bytes of the file, then open and parse, scale and pack, pin; last all of it, as a cold load does it."""
    spec = model_named(model)
    folder = Path(tempfile.mkdtemp(prefix="adapters-", dir=bench.folder))
    try:
        files = _write(bench, spec, rank, folder)
        size = files[0].stat().st_size
        sizes = {"model": model, "tp": 1, "rank": rank, "pairs": 7 * spec.num_hidden_layers, "bytes": size}
        yield row("disk_read", _times(files, _read_bytes), cache="page", **sizes)
        if _drop(files[0]):
            yield row("disk_read", _times(files, _read_bytes, cold=True), cache="cold", **sizes)
        yield row("adapter_parse", _times(files, _parse), cache="page", **sizes)
        yield row("adapter_pack", _times(files, _packing(spec)), cache="page", **sizes)
        yield row("adapter_from_disk", _times(files, _whole(bench, spec)), cache="page", **sizes)
        if _drop(files[0]):
            yield row("adapter_from_disk", _times(files, _whole(bench, spec), cold=True), cache="cold", **sizes)
    finally:
        shutil.rmtree(folder, ignore_errors=True)


def _write(bench: Bench, spec: ModelSpec, rank: int, folder: Path) -> list[Path]:
    """The same adapter in FILES files with PEFT's tensor names."""
    try:
        from safetensors.torch import save_file
    except ImportError as missing:
        raise SkipItemError("safetensors is not installed (pip install 'simlora[gpu]')") from missing
    pairs = host_adapter(bench, spec, rank, pinned=False)
    tensors: Tensors = {}
    for pair in pairs:
        tensors[f"{_prefix(pair)}.lora_A.weight"] = pair.a
        tensors[f"{_prefix(pair)}.lora_B.weight"] = pair.b
    first = folder / "adapter_0.safetensors"
    save_file(tensors, first)
    files = [first]
    for number in range(1, FILES):
        files.append(folder / f"adapter_{number}.safetensors")
        shutil.copyfile(first, files[-1])
    for file in files:
        with file.open("rb") as handle:
            os.fsync(handle.fileno())
    return files


def _prefix(pair: Pair) -> str:
    block = "self_attn" if pair.name in ("q_proj", "k_proj", "v_proj", "o_proj") else "mlp"
    return f"base_model.model.model.layers.{pair.layer}.{block}.{pair.name}"


def _times(files: list[Path], work: Callable[[Path], object], cold: bool = False) -> Stats:
    """Seconds of `work` on the files in turn; cold: after dropping the file's pages."""
    turn = 0

    def once() -> float:
        nonlocal turn
        file = files[turn % len(files)]
        turn += 1
        if cold:
            _drop(file)
        begin = time.perf_counter()
        work(file)
        return time.perf_counter() - begin

    if not cold:
        for file in files:
            work(file)
    return stats(repeat(once, PATIENCE_S))


def _drop(file: Path) -> bool:
    """Ask the kernel to forget the file's pages; False where it cannot be asked."""
    if not hasattr(os, "posix_fadvise"):
        return False
    with file.open("rb") as handle:
        os.posix_fadvise(handle.fileno(), 0, 0, os.POSIX_FADV_DONTNEED)
    return True


def _read_bytes(file: Path) -> int:
    return len(file.read_bytes())


def _parse(file: Path) -> Tensors:
    """Every tensor by name, touched: a mapped file is read only when its pages are."""
    from safetensors import safe_open

    with safe_open(str(file), framework="pt", device="cpu") as opened:
        return {name: opened.get_tensor(name).clone() for name in opened.keys()}  # noqa: SIM118


def _packing(spec: ModelSpec) -> Callable[[Path], object]:
    """Scaling and packing of tensors that are in memory already."""
    parsed: dict[Path, Tensors] = {}

    def work(file: Path) -> object:
        if file not in parsed:
            parsed[file] = _parse(file)
        return _pack(parsed[file], spec)

    return work


def _pack(tensors: Tensors, spec: ModelSpec) -> list[list[torch.Tensor]]:
    """Per fused linear the list of its A's and B's, with the scaling multiplied into B."""
    by_layer: dict[str, dict[str, torch.Tensor]] = {}
    for name, tensor in tensors.items():
        module, _, kind = name.rpartition(".lora_")
        layer, _, projection = module.rpartition(".")
        scaled = tensor * 2.0 if kind.startswith("B") else tensor
        by_layer.setdefault(layer, {})[f"{projection}.{kind[0]}"] = scaled
    packed = []
    for parts in by_layer.values():
        for names in (*PACKED.values(), ("o_proj",), ("down_proj",)):
            for kind in ("A", "B"):
                found = [parts[f"{name}.{kind}"] for name in names if f"{name}.{kind}" in parts]
                if found:
                    packed.append(found)
    return packed


def _whole(bench: Bench, spec: ModelSpec) -> Callable[[Path], object]:
    """Parse, scale and pack, pin every tensor."""

    def work(file: Path) -> object:
        packed = _pack(_parse(file), spec)
        if not bench.on_gpu:
            return packed
        return [[tensor.pin_memory() for tensor in tensors] for tensors in packed]

    return work
