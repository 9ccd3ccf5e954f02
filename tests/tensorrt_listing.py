"""Prints the public names of a library's classes as JSON: tensorrt_listing.py MODULE CLASS… ("" is the module itself).

Standard library only: it runs under whatever interpreter has the library, TensorRT 8.5's or a stand-in's.
"""

from __future__ import annotations

import importlib
import json
import sys


def listing(module: object, classes: list[str]) -> dict[str, list[str]]:
    """Class → its public names; of the module itself only those that are classes or functions."""
    found = {}
    for name in classes:
        owner = module
        for part in filter(None, name.split(".")):
            owner = getattr(owner, part, None)
        found[name] = sorted(one for one in dir(owner) if not one.startswith("_") and (name or _is_own(owner, one)))
    return found


def _is_own(module: object, name: str) -> bool:
    value = getattr(module, name)
    return callable(value) and getattr(value, "__module__", "") not in ("builtins", "ctypes", "os", "glob", "warnings")


if __name__ == "__main__":
    print(json.dumps(listing(importlib.import_module(sys.argv[1]), sys.argv[2:])))
