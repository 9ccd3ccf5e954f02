"""The service on a booted machine, step by step as its operator meets it."""

from __future__ import annotations

from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from tests.system.conftest import Container


def test_board_keeps_its_operators_mode_across_boots_without_jouled(container: Container) -> None:
    found = container.knobs()
    assert "NV Power Mode: MODE_50W" in container.nvpmodel()
    container.shut_down()
    container.boot()
    assert "NV Power Mode: MODE_50W" in container.nvpmodel()
    assert container.knobs() == found
