"""A GPU that is made up, behind the stand-in of nvidia-ml-py."""

from __future__ import annotations

import importlib.util
import sys
from pathlib import Path
from types import ModuleType
from typing import Any

STANDIN = Path(__file__).parent / "standins" / "pynvml.py"


def standin(**gpu: Any) -> ModuleType:
    """A stand-in of its own, whose GPU is as said."""
    spec = importlib.util.spec_from_file_location("pynvml_standin", STANDIN)
    assert spec is not None
    assert spec.loader is not None
    module = sys.modules["pynvml_standin"] = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    for name, value in gpu.items():
        assert hasattr(module._gpu, name), name
        setattr(module._gpu, name, value)
    return module
