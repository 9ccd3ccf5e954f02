"""A stand-in for tensorrt: the names that the runner uses, of the version that JOULED_STANDIN names, and no others.

A plan is the line `standin-plan` and a JSON object (tests/standin_python.py writes them), an ONNX file `standin-onnx`
and another. It fails as TensorRT does: None, False or pybind11's exceptions, the reason only in the log.
"""

from __future__ import annotations

import json
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
from tests.standins import machine
from tests.standins.machine import FAULTS, MACHINE, VERSION

__version__ = VERSION
_PLAN, _ONNX = b"standin-plan\n", b"standin-onnx\n"
_SIZES = {"FLOAT": "float32", "HALF": "float16", "BF16": "uint16", "INT8": "int8", "INT32": "int32", "INT64": "int64"}
_SIZES |= {"BOOL": "bool", "UINT8": "uint8", "FP8": "uint8", "E8M0": "uint8"}
_NULL = "pybind11::init(): factory function returned nullptr"

if FAULTS.get("import_holds_s"):
    machine.hold(FAULTS["import_holds_s"])
if FAULTS.get("import"):
    raise ImportError(FAULTS["import"])


class _Enumerated:
    """A member of one of TensorRT's enumerations."""

    def __init__(self, name: str, value: int) -> None:
        self._name, self._value = name, value

    def __int__(self) -> int:
        return self._value

    @property
    def name(self) -> str:
        """As TensorRT's."""
        return self._name


def _enumeration(name: str, *members: str) -> Any:
    made = type(name, (_Enumerated,), {"name": _Enumerated.name, "__module__": __name__})
    for value, member in enumerate(members):
        setattr(made, member, made(member, value))
    return made


DataType = _enumeration("DataType", *_SIZES, "INT4", "FP4")
TensorIOMode = _enumeration("TensorIOMode", "NONE", "INPUT", "OUTPUT")
TensorLocation = _enumeration("TensorLocation", "DEVICE", "HOST")
BuilderFlag = _enumeration("BuilderFlag", "FP16", "INT8")
NetworkDefinitionCreationFlag = _enumeration("NetworkDefinitionCreationFlag", "EXPLICIT_BATCH")
MemoryPoolType = _enumeration("MemoryPoolType", "WORKSPACE")
TacticSource = _enumeration(
    "TacticSource", "CUBLAS", "CUBLAS_LT", "CUDNN", "EDGE_MASK_CONVOLUTIONS", "JIT_CONVOLUTIONS"
)
_MODES = {"input": TensorIOMode.INPUT, "output": TensorIOMode.OUTPUT}
_PLACES = {True: TensorLocation.HOST, False: TensorLocation.DEVICE}
_TYPES = {name: getattr(DataType, name) for name in (*_SIZES, "INT4", "FP4")}


class _Dims:
    """As TensorRT's: a sequence, no list and no tuple."""

    def __init__(self, sizes: Any) -> None:
        self._sizes = tuple(int(size) for size in sizes)

    def __len__(self) -> int:
        return len(self._sizes)

    def __getitem__(self, index: int) -> int:
        return self._sizes[index]

    def __iter__(self) -> Iterator[int]:
        return iter(self._sizes)


class ILogger:
    """As TensorRT's."""

    Severity = _enumeration("Severity", "INTERNAL_ERROR", "ERROR", "WARNING", "INFO", "VERBOSE")

    def log(self, severity: Any, msg: str) -> None:
        """As TensorRT's: to be overridden."""
        raise NotImplementedError


_LEVELS = {name: getattr(ILogger.Severity, name) for name in ("INTERNAL_ERROR", "ERROR", "WARNING", "INFO", "VERBOSE")}


def _log(logger: ILogger, level: str, text: str) -> None:
    logger.log(_LEVELS[level], text)


def _log_no_memory(logger: ILogger, nbytes: int) -> None:
    _log(logger, "ERROR", "1: [defaultAllocator.cpp::allocate::20] Error Code 1: Cuda Runtime (out of memory)")
    text = f"Requested amount of GPU memory ({nbytes} bytes) could not be allocated."
    _log(logger, "WARNING", f"{text} There may not be enough free memory for allocation to succeed.")


def init_libnvinfer_plugins(logger: ILogger, namespace: str) -> bool:
    """As TensorRT's."""
    _log(logger, "VERBOSE", "Registered plugin creator - ::Split version 1")
    return not FAULTS.get("plugins")


class Runtime:
    """As TensorRT's."""

    def __init__(self, logger: ILogger) -> None:
        assert isinstance(logger, ILogger)
        if FAULTS.get("runtime"):
            _log(logger, "WARNING", f"CUDA initialization failure with error: {FAULTS['runtime']}")
            raise TypeError(_NULL)
        self._logger = logger
        if FAULTS.get("prints"):
            print("TensorRT says hello on standard output", flush=True)

    def deserialize_cuda_engine(self, serialized_engine: bytes) -> ICudaEngine | None:
        """As TensorRT's."""
        machine.wait(FAULTS.get("load_s", 0.0))
        why = "Serialization assertion magicTagRead == kMAGIC_TAG failed.Magic tag does not match"
        if bytes(serialized_engine[: len(_PLAN)]) == _PLAN:
            try:
                plan = json.loads(serialized_engine[len(_PLAN) :])
            except ValueError:
                why = "Serialization assertion sizeRead == size failed.Size specified in header does not match"
            else:
                return self._loaded(plan)
        _log(self._logger, "ERROR", f"1: [stdArchiveReader.cpp::30] Error Code 1: Serialization ({why})")
        text = (
            "4: [runtime.cpp::deserializeCudaEngine::66] Error Code 4: Internal Error (Engine deserialization failed.)"
        )
        _log(self._logger, "ERROR", text)
        return None

    def _loaded(self, plan: dict[str, Any]) -> ICudaEngine | None:
        if not MACHINE.take(plan["weights_bytes"]):
            _log_no_memory(self._logger, plan["weights_bytes"])
            return None
        return ICudaEngine(plan, self._logger)


class ICudaEngine:
    """As TensorRT's."""

    def __init__(self, plan: dict[str, Any], logger: ILogger) -> None:
        self._plan, self._logger = plan, logger
        self._tensors = {tensor["name"]: tensor for tensor in plan["tensors"]}
        MACHINE.engines += 1

    def __del__(self) -> None:
        MACHINE.free_bytes += self._plan["weights_bytes"]
        MACHINE.engines -= 1

    @property
    def num_io_tensors(self) -> int:
        """As TensorRT's."""
        return len(self._tensors)

    @property
    def num_optimization_profiles(self) -> int:
        """As TensorRT's."""
        return int(self._plan.get("profiles", 1))

    @property
    def device_memory_size(self) -> int:
        """As TensorRT's."""
        return int(self._plan["context_bytes"])

    @property
    def device_memory_size_v2(self) -> int:
        """As TensorRT's."""
        return int(self._plan["context_bytes"])

    def get_tensor_name(self, index: int) -> str:
        """As TensorRT's."""
        return str(list(self._tensors)[index])

    def get_tensor_mode(self, name: str) -> Any:
        """As TensorRT's."""
        return _MODES[self._tensors[name]["mode"]]

    def get_tensor_location(self, name: str) -> Any:
        """As TensorRT's."""
        return _PLACES[bool(self._tensors[name].get("host"))]

    def get_tensor_dtype(self, name: str) -> Any:
        """As TensorRT's."""
        return _TYPES[self._tensors[name].get("dtype", "FLOAT")]

    def get_tensor_shape(self, name: str) -> _Dims:
        """As TensorRT's."""
        return _Dims(self._tensors[name]["shape"])

    def get_tensor_vectorized_dim(self, name: str) -> int:
        """As TensorRT's."""
        return int(self._tensors[name].get("vector", (-1, 1))[0])

    def get_tensor_components_per_element(self, name: str) -> int:
        """As TensorRT's."""
        return int(self._tensors[name].get("vector", (-1, -1))[1])

    def get_tensor_profile_shape(self, name: str, profile_index: int) -> list[_Dims]:
        """As TensorRT's."""
        return [_Dims(shape) for shape in self._tensors[name]["profile"][profile_index]]

    def create_execution_context(self) -> IExecutionContext | None:
        """As TensorRT's."""
        if FAULTS.get("context_holds_s"):
            machine.hold(FAULTS["context_holds_s"])
        if FAULTS.get("context"):
            _log(
                self._logger,
                "ERROR",
                "1: [convolutionRunner.cpp::312] Error Code 1: Cudnn (CUDNN_STATUS_NOT_SUPPORTED)",
            )
            return None
        if not MACHINE.take(self._plan["context_bytes"]):
            _log_no_memory(self._logger, self._plan["context_bytes"])
            return None
        return IExecutionContext(self)


class IExecutionContext:
    """As TensorRT's."""

    def __init__(self, engine: ICudaEngine) -> None:
        self._engine, self._profile = engine, 0
        self._shapes: dict[str, tuple[int, ...]] = {}
        self._addresses: dict[str, int] = {}
        MACHINE.engines += 1

    def __del__(self) -> None:
        MACHINE.free_bytes += self._engine._plan["context_bytes"]
        MACHINE.engines -= 1

    def set_optimization_profile_async(self, profile_index: int, stream_handle: int) -> bool:
        """As TensorRT's."""
        assert stream_handle in MACHINE.streams
        self._profile = profile_index
        return 0 <= profile_index < int(self._engine._plan.get("profiles", 1))

    def set_input_shape(self, name: str, shape: Any) -> bool:
        """As TensorRT's."""
        tensor = self._engine._tensors[name]
        least, _, most = tensor["profile"][self._profile] if -1 in tensor["shape"] else (tensor["shape"],) * 3
        if FAULTS.get("refuses_shape") or not all(map(lambda a, b, c: a <= b <= c, least, shape, most)):
            text = "3: [executionContext.cpp::setInputShape::2257] Error Code 3: API Usage Error (satisfyProfile)"
            _log(self._engine._logger, "ERROR", text)
            return False
        self._shapes[name] = tuple(shape)
        return True

    def set_tensor_address(self, name: str, memory: int) -> bool:
        """As TensorRT's."""
        self._addresses[name] = int(memory)
        return FAULTS.get("refuses_address") != name

    def infer_shapes(self) -> list[str]:
        """As TensorRT's."""
        if FAULTS.get("infer_shapes"):
            raise RuntimeError("infer_shapes failed")
        inputs = [tensor for tensor in self._engine._tensors.values() if tensor["mode"] == "input"]
        lacking = [tensor["name"] for tensor in inputs if -1 in tensor["shape"] and tensor["name"] not in self._shapes]
        return lacking + [one["name"] for one in inputs if one.get("host") and one["name"] not in self._addresses]

    def get_tensor_shape(self, name: str) -> _Dims:
        """As TensorRT's."""
        shape = list(self._shapes.get(name, self._engine._tensors[name]["shape"]))
        if self._engine._tensors[name]["mode"] == "output" and shape and shape[0] == -1:
            shape[0] = next(iter(self._shapes.values()), (-1,))[0]
        return _Dims(shape)

    def get_max_output_size(self, name: str) -> int:
        """As TensorRT's."""
        return int(self._engine._tensors[name].get("most_bytes", -1))

    def execute_async_v3(self, stream_handle: int) -> bool:
        """As TensorRT's."""
        if set(self._addresses) != set(self._engine._tensors):
            _log(self._engine._logger, "ERROR", "3: [executionContext.cpp::enqueueV3] Error Code 3: API Usage Error")
            return False
        MACHINE.enqueued += 1
        if FAULTS.get("refuses_at") == MACHINE.enqueued:
            text = "1: [genericReformat.cu::185] Error Code 1: Cuda Runtime (an illegal memory access was encountered)"
            _log(self._engine._logger, "ERROR", text)
            return False
        if FAULTS.get("warns"):
            _log(self._engine._logger, "WARNING", f"something is slow at request {MACHINE.enqueued}")
        MACHINE.put(stream_handle, self._compute)
        return True

    def _compute(self) -> None:
        MACHINE.requests += 1
        machine.strike(MACHINE.requests)
        if FAULTS.get("holds_at") == MACHINE.requests:
            machine.hold(3600.0)
        machine.wait(self._engine._plan["latency_s"])
        read, written = {}, []
        for name, tensor in self._engine._tensors.items():
            shape = tuple(int(size) for size in self.get_tensor_shape(name))
            kind = _SIZES.get(tensor.get("dtype", "FLOAT"), "uint8")
            if tensor["mode"] == "input" and not tensor.get("host"):
                count = int(np.prod(shape))
                if "vector" not in tensor and tensor.get("dtype") not in ("INT4", "FP4"):
                    at = MACHINE.at(self._addresses[name], count * np.dtype(kind).itemsize)
                    read[name] = np.frombuffer(at, dtype=kind).reshape(shape)
            elif tensor["mode"] == "output" and -1 not in shape and "vector" not in tensor:
                written.append((name, shape, kind))
        for name, shape, kind in written:
            values = machine.forward(read, shape) + float(FAULTS.get("wrong_by", 0.0))
            if FAULTS.get("nan"):
                values = values * np.nan
            data = values.astype(kind).tobytes()
            MACHINE.at(self._addresses[name], len(data))[:] = data


class ITensor:
    """As TensorRT's."""

    def __init__(self, tensor: dict[str, Any]) -> None:
        self._tensor = tensor

    @property
    def name(self) -> str:
        """As TensorRT's."""
        return str(self._tensor["name"])

    @property
    def shape(self) -> _Dims:
        """As TensorRT's."""
        return _Dims(self._tensor["shape"])

    @property
    def is_shape_tensor(self) -> bool:
        """As TensorRT's."""
        return bool(self._tensor.get("host"))


class INetworkDefinition:
    """As TensorRT's."""

    def __init__(self, flags: int) -> None:
        self._flags = flags
        self._model: dict[str, Any] = {"tensors": []}

    @property
    def num_inputs(self) -> int:
        """As TensorRT's."""
        return len(self._inputs())

    def get_input(self, index: int) -> ITensor:
        """As TensorRT's."""
        return ITensor(self._inputs()[index])

    def _inputs(self) -> list[dict[str, Any]]:
        return [tensor for tensor in self._model["tensors"] if tensor["mode"] == "input"]


class ParserError:
    """As TensorRT's."""

    def __init__(self, text: str) -> None:
        self._text = text

    def desc(self) -> str:
        """As TensorRT's."""
        return self._text


class OnnxParser:
    """As TensorRT's."""

    def __init__(self, network: INetworkDefinition, logger: ILogger) -> None:
        self._network, self._logger = network, logger
        self._errors: list[str] = []

    @property
    def num_errors(self) -> int:
        """As TensorRT's."""
        return len(self._errors)

    def get_error(self, index: int) -> ParserError:
        """As TensorRT's."""
        return ParserError(self._errors[index])

    def parse_from_file(self, model: str) -> bool:
        """As TensorRT's."""
        data = Path(model).read_bytes()
        if not data.startswith(_ONNX):
            self._errors.append("ModelImporter: Failed to parse ONNX model from file")
        elif VERSION.startswith("8") and not self._network._flags:
            self._errors.append(
                "This version of the ONNX parser only supports networks with an explicit batch dimension"
            )
        else:
            self._network._model = json.loads(data[len(_ONNX) :])
        return not self._errors


class IOptimizationProfile:
    """As TensorRT's."""

    def __init__(self) -> None:
        self._ranges: dict[str, list[list[int]]] = {}

    def set_shape(self, input: str, min: Any, opt: Any, max: Any) -> None:
        """As TensorRT's."""
        if not len(min) == len(opt) == len(max) or not all(map(lambda a, b, c: 0 <= a <= b <= c, min, opt, max)):
            raise ValueError("Shape provided for min is inconsistent with other shapes.")
        self._ranges[input] = [list(min), list(opt), list(max)]

    def set_shape_input(self, input: str, min: Any, opt: Any, max: Any) -> None:
        """As TensorRT's."""
        self.set_shape(input, min, opt, max)


class IBuilderConfig:
    """As TensorRT's."""

    def __init__(self) -> None:
        self._profiles: list[IOptimizationProfile] = []
        self._built: dict[str, Any] = {"flags": []}

    def set_flag(self, flag: Any) -> None:
        """As TensorRT's."""
        self._built["flags"].append(flag.name)

    def set_memory_pool_limit(self, pool: Any, pool_size: int) -> None:
        """As TensorRT's."""
        self._built[pool.name] = pool_size

    def set_tactic_sources(self, tactic_sources: int) -> bool:
        """As TensorRT's."""
        self._built["tactic_sources"] = tactic_sources
        return True

    def add_optimization_profile(self, profile: IOptimizationProfile) -> int:
        """As TensorRT's."""
        if FAULTS.get("refuses_profile"):
            return -1
        self._profiles.append(profile)
        return len(self._profiles) - 1


class IHostMemory(bytearray):
    """As TensorRT's: a buffer."""

    @property
    def nbytes(self) -> int:
        """As TensorRT's."""
        return len(self)


class Builder:
    """As TensorRT's."""

    def __init__(self, logger: ILogger) -> None:
        if FAULTS.get("runtime"):
            _log(logger, "WARNING", f"CUDA initialization failure with error: {FAULTS['runtime']}")
            raise TypeError(_NULL)
        self._logger = logger

    def create_network(self, flags: int = 0) -> INetworkDefinition:
        """As TensorRT's."""
        return INetworkDefinition(flags)

    def create_builder_config(self) -> IBuilderConfig:
        """As TensorRT's."""
        return IBuilderConfig()

    def create_optimization_profile(self) -> IOptimizationProfile:
        """As TensorRT's."""
        return IOptimizationProfile()

    def build_serialized_network(self, network: INetworkDefinition, config: IBuilderConfig) -> IHostMemory | None:
        """As TensorRT's."""
        machine.wait(FAULTS.get("build_s", 0.0))
        ranges = config._profiles[0]._ranges if config._profiles else {}
        model = json.loads(json.dumps(network._model))
        for tensor in model["tensors"]:
            if tensor["mode"] == "input" and -1 in tensor["shape"]:
                if tensor["name"] not in ranges:
                    _log(self._logger, "ERROR", "4: [network.cpp::validate::3036] no optimization profile")
                    return None
                tensor["profile"] = [ranges[tensor["name"]]]
        if FAULTS.get("build") == "memory":
            _log_no_memory(self._logger, 1 << 33)
            _log(self._logger, "ERROR", "2: [virtualMemoryBuffer.cpp::resizePhysical::144] Error Code 2: OutOfMemory")
            return None
        if FAULTS.get("build"):
            _log(self._logger, "WARNING", "Tactic Device request: 4096MB. Out of memory, tactic skipped.")
            text = "10: [optimizer.cpp::computeCosts::3728] Error Code 10: Could not find any implementation"
            _log(self._logger, "ERROR", text)
            return None
        return IHostMemory(_PLAN + json.dumps({**model, "built": config._built}).encode())


machine.keep_proven(globals(), "tensorrt", VERSION)
