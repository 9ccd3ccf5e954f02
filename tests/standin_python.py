"""Interpreters in which tensorrt and pycuda are the stand-ins of tests/standins, and plans for them."""

from __future__ import annotations

import json
import os
import shlex
import sys
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

ROOT = Path(__file__).resolve().parents[1]
RUNNER = ROOT / "daemon" / "jouled" / "workload" / "tensorrt_runner.py"
VERSIONS = ("8.5.3.1", "10.3.0", "11.4.0.106")

Tensor = Mapping[str, Any]
STATIC: tuple[Tensor, ...] = (
    {"name": "input", "mode": "input", "shape": [2, 3, 4, 4]},
    {"name": "output", "mode": "output", "shape": [2, 5]},
)
DYNAMIC: tuple[Tensor, ...] = (
    {
        "name": "input",
        "mode": "input",
        "shape": [-1, 3, 4, 4],
        "profile": [[[1, 3, 4, 4], [8, 3, 4, 4], [16, 3, 4, 4]]],
    },
    {"name": "output", "mode": "output", "shape": [-1, 5]},
)


def interpreter(folder: Path, *, modules: Sequence[str] = ("tensorrt", "pycuda"), **settings: Any) -> Path:
    """An executable that is this Python with the stand-ins named in `modules`; `settings` as tests/standins/machine.py.

    It sets its own environment, so that a parent may start it with a clean one.
    """
    seen = folder / "standins"
    seen.mkdir(parents=True, exist_ok=True)
    for module in modules:
        if not (seen / module).exists():
            (seen / module).symlink_to(ROOT / "tests" / "standins" / module)
    path = folder / "python"
    named = {"JOULED_STANDIN": json.dumps(settings), "PYTHONPATH": os.pathsep.join((str(seen), str(ROOT)))}
    words = " ".join(f"{name}={shlex.quote(value)}" for name, value in named.items())
    path.write_text(f'#!/bin/sh\nexport {words}\nexec {shlex.quote(sys.executable)} "$@"\n', "utf-8")
    path.chmod(0o755)
    return path


def plan(
    folder: Path,
    *,
    tensors: Sequence[Tensor] = STATIC,
    latency_s: float = 0.0005,
    name: str = "detector.plan",
    **more: Any,
) -> Path:
    """A plan of the stand-in TensorRT. `more`: `context_bytes`, `weights_bytes`, `profiles`."""
    path = folder / name
    path.write_bytes(b"standin-plan\n" + _model(tensors, latency_s, more))
    return path


def onnx(
    folder: Path,
    *,
    tensors: Sequence[Tensor] = STATIC,
    latency_s: float = 0.0005,
    name: str = "detector.onnx",
    **more: Any,
) -> Path:
    """An ONNX file of the stand-in TensorRT."""
    path = folder / name
    path.write_bytes(b"standin-onnx\n" + _model(tensors, latency_s, more))
    return path


def _model(tensors: Sequence[Tensor], latency_s: float, more: Mapping[str, Any]) -> bytes:
    sizes = {"context_bytes": 1 << 20, "weights_bytes": 4 << 20}
    return json.dumps({**sizes, **more, "latency_s": latency_s, "tensors": list(tensors)}).encode()
