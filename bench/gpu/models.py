"""Makes ResNet-50 (random weights) and a tiny convolution as ONNX, with inputs and reference outputs; needs torch.

python3 models.py FOLDER
"""

from __future__ import annotations

import sys
import time
from importlib import import_module
from pathlib import Path
from typing import Any

import numpy as np

ROWS = 16


def export(model: Any, shape: tuple[int, ...], path: Path) -> None:
    """To ONNX with a free batch."""
    torch = import_module("torch")

    axes = {"input": {0: "N"}, "output": {0: "N"}}
    names = {"input_names": ["input"], "output_names": ["output"], "dynamic_axes": axes}
    torch.onnx.export(model, (torch.randn(1, *shape),), str(path), opset_version=13, dynamo=False, **names)


def resnet50() -> Any:
    """Random weights; batch-norm statistics of random inputs keep the activations in range."""
    torch, torchvision = import_module("torch"), import_module("torchvision")

    torch.manual_seed(0)
    model = torchvision.models.resnet50(weights=None).train()
    with torch.no_grad():
        for _ in range(3):
            model(torch.randn(8, 3, 224, 224))
    return model.eval()


def tiny() -> Any:
    """Builds in a second or two."""
    torch = import_module("torch")

    torch.manual_seed(0)
    return torch.nn.Sequential(torch.nn.Conv2d(3, 8, 3, padding=1), torch.nn.ReLU()).eval()


def make(name: str, model: Any, shape: tuple[int, ...], folder: Path) -> None:
    """FOLDER/NAME.onnx, NAME_inputs.npz, NAME_outputs.npz (float32 throughout, no TF32)."""
    torch = import_module("torch")

    export(model, shape, folder / f"{name}.onnx")
    inputs = np.random.default_rng(1).standard_normal((ROWS, *shape)).astype(np.float32)
    torch.backends.cudnn.allow_tf32 = False
    torch.backends.cuda.matmul.allow_tf32 = False
    with torch.no_grad():
        outputs = model.cuda()(torch.from_numpy(inputs).cuda()).cpu().numpy()
    np.savez(folder / f"{name}_inputs.npz", input=inputs)
    np.savez(folder / f"{name}_outputs.npz", output=outputs)
    np.savez(folder / f"{name}_wrong.npz", output=outputs[::-1] + 1.0)


def main() -> int:
    folder, began_s = Path(sys.argv[1]), time.monotonic()
    make("tiny", tiny(), (3, 64, 64), folder)
    make("resnet50", resnet50(), (3, 224, 224), folder)
    print(f"models made in {time.monotonic() - began_s:.1f} s")
    (folder / "done").write_text("ok\n")
    return 0


if __name__ == "__main__":
    sys.exit(main())
