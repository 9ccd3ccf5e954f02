"""The metrics as a file for node_exporter: always whole, readable by all, said where it cannot be, gone at the end."""

from __future__ import annotations

import asyncio
import logging
import os
from pathlib import Path

import pytest

from jouled.control.repeating import repeating
from jouled.control.textfile import Textfile

TEXT = b"# TYPE x gauge\nx 1.0\n"


def _make(path: Path, said: list[str], text: bytes = TEXT) -> Textfile:
    return Textfile(path, lambda: text, said.append)


def test_the_file_is_replaced_as_a_whole_and_everybody_may_read_it(tmp_path: Path) -> None:
    path, said = tmp_path / "jouled.prom", list[str]()
    before = os.umask(0o077)
    try:
        _make(path, said).write()
        with path.open("rb") as reading:  # as node_exporter does while the next one is written
            _make(path, said, b"x 2.0\n" * 1000).write()
            assert reading.read() == TEXT
    finally:
        os.umask(before)
    assert path.read_bytes() == b"x 2.0\n" * 1000
    assert path.stat().st_mode & 0o777 == 0o644
    assert (os.listdir(tmp_path), said) == (["jouled.prom"], [])


def test_a_link_that_somebody_laid_is_not_followed(tmp_path: Path) -> None:
    path, victim = tmp_path / "jouled.prom", tmp_path / "victim"
    victim.write_text("mine")
    (tmp_path / ".jouled.prom.new").symlink_to(victim)
    path.symlink_to(victim)
    _make(path, []).write()
    assert (victim.read_text(), path.read_bytes(), path.is_symlink()) == ("mine", TEXT, False)


def test_a_folder_that_is_not_there_is_said_once_and_found_later(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    path, said = tmp_path / "later" / "jouled.prom", list[str]()
    textfile = _make(path, said)
    for _ in range(3):
        textfile.write()
    assert len(said) == 1
    assert f"metrics.textfile {path} cannot be written: No such file or directory" in said[0]
    assert "docs/monitoring.md" in said[0]
    assert [record.levelno for record in caplog.records] == [logging.WARNING]
    path.parent.mkdir()
    textfile.write()
    assert (path.read_bytes(), said[1:]) == (TEXT, [""])


def test_it_is_gone_with_the_daemon(tmp_path: Path) -> None:
    textfile = _make(tmp_path / "jouled.prom", [])
    textfile.write()
    textfile.remove()
    textfile.remove()
    assert os.listdir(tmp_path) == []


def test_work_is_repeated_until_the_block_ends() -> None:
    done: list[int] = []

    async def run() -> None:
        async with repeating(0.001, lambda: done.append(1)):
            while len(done) < 5:
                await asyncio.sleep(0.001)
        count = len(done)
        await asyncio.sleep(0.01)
        assert len(done) == count

    asyncio.run(asyncio.wait_for(run(), 20))


def test_a_mistake_in_repeated_work_is_logged_and_raised_at_the_end(caplog: pytest.LogCaptureFixture) -> None:
    def work() -> None:
        raise ZeroDivisionError("a mistake")

    async def run() -> None:
        async with repeating(0.001, work):
            while not caplog.records:
                await asyncio.sleep(0.001)

    with pytest.raises(ZeroDivisionError):
        asyncio.run(asyncio.wait_for(run(), 20))
    assert [record.levelno for record in caplog.records] == [logging.ERROR]
