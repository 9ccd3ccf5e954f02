"""Make the host able to run the chain: jouled's wheels and paths, TensorRT unpacked, the models."""

from __future__ import annotations

import ctypes
import os
import shutil
import site
import subprocess
import sys
import time
from pathlib import Path

from bench.gpu.place import ROOT, Numbers, Place, StageError, call, versions, wait_until

DRIVER = Path("/usr/local/nvidia")  # where containers find the driver's libraries
_WRAPPER = """\
#!/bin/sh
# The interpreter with tensorrt and pycuda; PYTHONHOME and LD_LIBRARY_PATH would break the host's own python3.
export PYTHONHOME={base}/py310 PYTHONPATH={base}/t85 PYTHONDONTWRITEBYTECODE=1
export LD_LIBRARY_PATH={base}/py310/lib:{base}/py310/lib/extra:{base}/stub85:{base}/t85/tensorrt{more}
exec {base}/py310/bin/python3.10 "$@"
"""


def setup(place: Place) -> Numbers:
    """Wheels (some of the pieces) and paths for the python3 here; the driver's libraries where a loader finds them."""
    began_s = time.monotonic()
    wheels = sorted(place.pieces.glob("*.whl"))
    folder = place.at / "site"
    if wheels:
        pip = [sys.executable, "-m", "pip", "install", "-q", "--no-index", "--no-deps", "--no-compile"]
        call(place, [*pip, "--no-cache-dir", "--upgrade", "--target", folder, *wheels], what="pip")
    paths = [str(path) for path in (place.standins, folder, ROOT / "daemon", ROOT / "tuner", ROOT) if path]
    link = Path(site.getsitepackages()[0]) / "jouled_bench.pth"
    link.write_text(f"import sys; sys.path[0:0] = {paths!r}\n")
    driver = driver_libraries()
    code = "import optuna, sqlalchemy, msgspec, aiohttp, prometheus_client, pynvml, jouled.job.job, jouletune.search"
    call(place, ["/usr/bin/env", "-i", sys.executable, "-c", code], what="imports in a clean environment")
    packages = ("numpy", "scipy", "optuna", "nvidia-ml-py", "torch")
    gpu = ["nvidia-smi", "--query-gpu=name,driver_version,memory.total,memory.used", "--format=csv,noheader"]
    seen = "stand-ins" if place.standins else call(place, gpu, what="nvidia-smi").strip()
    return {
        "gpu": seen,
        "cores": os.cpu_count(),
        "driver": driver,
        "versions": versions(*packages),
        "seconds": round(time.monotonic() - began_s, 1),
    }


def look(place: Place) -> Numbers:
    """What the host is, before anything is put on it."""
    commands = {
        "loader": "ldconfig -p | grep -E 'libcuda.so|libnvidia-ml' || true",
        "driver_folder": f"ls {DRIVER} {DRIVER}/lib64 2>&1 | head -40",
        "gpu": "nvidia-smi || true",
        "memory": "head -3 /proc/meminfo; df -h /tmp | tail -1",
        "programs": "which python3 bash zstd ldconfig env nvcc || true",
    }
    numbers: Numbers = {name: call(place, ["sh", "-c", command], what=name) for name, command in commands.items()}
    folder = Path(site.getsitepackages()[0])
    numbers |= {
        "python": sys.executable,
        "site_packages": str(folder),
        "may_write_there": os.access(folder, os.W_OK),
        "library_path": os.environ.get("LD_LIBRARY_PATH"),
        "cores": os.cpu_count(),
        "versions": versions("numpy", "scipy", "nvidia-ml-py", "torch", "torchvision", "onnx"),
    }
    return numbers


def driver_libraries() -> str:
    """Where libcuda and libnvidia-ml are found without any environment."""
    if _loads("libcuda.so.1") and _loads("libnvidia-ml.so.1"):
        return "found by the loader"
    folders = [folder for folder in (DRIVER / "lib64", DRIVER / "lib") if folder.is_dir()]
    if not folders:
        return "not found"
    Path("/etc/ld.so.conf.d/jouled-bench.conf").write_text("".join(f"{folder}\n" for folder in folders))
    subprocess.run(["ldconfig"], check=True)
    return f"added to the loader's folders: {', '.join(map(str, folders))}"


def _loads(library: str) -> bool:
    code = f"import ctypes; ctypes.CDLL({library!r})"
    argv = ["/usr/bin/env", "-i", sys.executable, "-c", code]
    return subprocess.run(argv, capture_output=True, check=False).returncode == 0


def unpack(place: Place) -> Numbers:
    """TensorRT, pycuda and their Python, from the pieces (a tool of this project's workplace packs them)."""
    began_s = time.monotonic()
    if place.standins:
        place.at.mkdir(parents=True, exist_ok=True)
        text = (place.standins / "python").read_text()
    else:
        base = place.at / "trt"
        call(place, ["bash", place.pieces / "unpack.sh", place.pieces, base], what="unpack.sh")
        more = "".join(f":{folder}" for folder in (DRIVER / "lib64", DRIVER / "lib") if folder.is_dir())
        text = _WRAPPER.format(base=base, more=more)
    place.python.write_text(text)
    place.python.chmod(0o755)
    code = "import sys, tensorrt, pycuda, pycuda.driver; print(sys.version.split()[0], tensorrt.__version__)"
    said = call(place, ["/usr/bin/env", "-i", place.python, "-c", code], what="import tensorrt, pycuda").split()
    return {"python": said[-2], "tensorrt": said[-1], "seconds": round(time.monotonic() - began_s, 1)}


def models(place: Place) -> Numbers:
    """Wait for the ONNX files, which `begin_models` lets a process of its own make meanwhile."""
    done = place.models / "done"
    if not done.exists() and not (place.models / "log").exists():
        begin_models(place)
    took_s = wait_until(done.exists, min(120.0, place.left_s()), "models")
    sizes = {path.name: path.stat().st_size for path in sorted(place.models.iterdir())}
    return {"waited_s": round(took_s, 1), "files": sizes, "log": (place.models / "log").read_text()[-500:]}


def begin_models(place: Place) -> Numbers:
    """Start making the models; outlives this command."""
    place.models.mkdir(parents=True, exist_ok=True)
    if place.standins:
        shutil.copytree(place.standins / "models", place.models, dirs_exist_ok=True)
        (place.models / "log").write_text("stand-ins\n")
        (place.models / "done").write_text("ok\n")
        return {"made_by": "stand-ins"}
    script = Path(__file__).with_name("models.py")
    with (place.models / "log").open("wb") as log:
        subprocess.Popen(
            [sys.executable, str(script), str(place.models)],
            stdin=subprocess.DEVNULL,
            stdout=log,
            stderr=log,
            start_new_session=True,
        )
    return {"made_by": script.name}


def loads_cuda() -> bool:
    """Is there a driver at all?"""
    try:
        ctypes.CDLL("libcuda.so.1")
    except OSError:
        return False
    return True


def require_driver(place: Place) -> None:
    """Raise StageError where neither a GPU nor stand-ins are there."""
    if place.standins is None and not loads_cuda():
        raise StageError("no NVIDIA driver here: libcuda.so.1 does not load")
