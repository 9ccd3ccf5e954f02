"""Takes the GPU's memory by one plain allocation, except LEAVE bytes, says so, and holds it until its input ends."""

from __future__ import annotations

import sys
from importlib import import_module


def main() -> int:
    torch = import_module("torch")

    free, _ = torch.cuda.mem_get_info()
    taken = torch.empty(free - int(sys.argv[1]), dtype=torch.uint8, device="cuda")
    print(f"holds {taken.numel()} bytes", flush=True)
    sys.stdin.read()
    return 0


if __name__ == "__main__":
    sys.exit(main())
