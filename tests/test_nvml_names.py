"""The stand-in of nvidia-ml-py holds nothing that the real one lacks, and the product asks for nothing else."""

from __future__ import annotations

import inspect
import re
from pathlib import Path
from types import ModuleType

import pynvml
import pytest
from tests.gpu import standin

ROOT = Path(__file__).parents[1]
ASKED = ("nvml_child.py", "nvml_device.py")


def public(module: ModuleType) -> dict[str, object]:
    """Its own names: what it imports is no part of it."""
    return {name: value for name, value in vars(module).items() if re.match(r"(?i)nvml", name)}


def test_every_name_of_the_standin_is_one_of_the_real_binding() -> None:
    real = public(pynvml)
    assert set(public(standin())) <= set(real)


def test_constants_have_the_real_values() -> None:
    for name, value in public(standin()).items():
        if isinstance(value, int):
            assert value == getattr(pynvml, name), name


@pytest.mark.parametrize("name", sorted(name for name, value in public(standin()).items() if inspect.isfunction(value)))
def test_functions_take_what_the_real_ones_take(name: str) -> None:
    ours = inspect.signature(getattr(standin(), name)).parameters
    theirs = inspect.signature(getattr(pynvml, name)).parameters
    assert list(ours) == [name for name in theirs if theirs[name].default is inspect.Parameter.empty]


@pytest.mark.parametrize("code", [3, 12, 13, 15])
def test_errors_become_the_class_of_their_code_as_the_real_ones_do(code: int) -> None:
    for module in (standin(), pynvml):
        error = module.NVMLError(code)
        assert error.value == code
        assert type(error).__mro__[1] is module.NVMLError
    assert type(standin().NVMLError(code)).__name__ == type(pynvml.NVMLError(code)).__name__
    assert str(standin().NVMLError(code)) == str(pynvml.NVMLError(code))


def test_the_real_binding_fails_without_a_driver_as_the_standin_does() -> None:
    try:
        pynvml.nvmlInit()
    except pynvml.NVMLError as error:
        failure = error
    else:
        pynvml.nvmlShutdown()
        return  # it has one
    assert type(failure).__name__ == "NVMLError_LibraryNotFound"


def test_the_product_asks_for_names_that_both_have() -> None:
    """Names that it builds (kinds of clock reasons, of processes) are asked for one by one in test_nvml_child."""
    for file in ASKED:
        text = (ROOT / "daemon" / "jouled" / "board" / file).read_text()
        asked = set(re.findall(r"nvml\.(\w+)", text)) | set(re.findall(r'_ask\("(\w+)"', text))
        assert asked - set(public(pynvml)) == set(), file
        assert asked - set(public(standin())) == set(), file
