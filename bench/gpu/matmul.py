"""A command workload: JOULED_BATCH matrix products on the GPU, then one line on standard output; needs torch."""

from __future__ import annotations

import os
import sys
from importlib import import_module

SIDE = 8192


def main() -> int:
    torch = import_module("torch")

    batch = int(os.environ.get("JOULED_BATCH", "1"))
    left, right = (torch.randn(SIDE, SIDE, device="cuda", dtype=torch.bfloat16) for _ in range(2))
    out = torch.empty_like(left)
    while True:
        for _ in range(batch):
            torch.matmul(left, right, out=out)
        torch.cuda.synchronize()
        print("product", flush=True)


if __name__ == "__main__":
    sys.exit(main())
