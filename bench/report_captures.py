"""Pictures of a report in a headless browser, and what only a browser can tell: that it loads nothing, never scrolls
sideways, and that the numbers in its document are those of `tune --json`.

    python -m bench.report_captures [--out docs/img] [--browser chromium] [--state DIR] [--job JOB]

Runs a job on a virtual board (unless --state names a folder that holds one), writes its report and opens it light, dark
and 390 px wide. Ends with 1 where a request went out, a page is wider than its window or a number is another.
"""

from __future__ import annotations

import argparse
import asyncio
import base64
import io
import subprocess
import sys
import tempfile
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from dataclasses import dataclass, field
from itertools import count
from pathlib import Path
from typing import Any

import aiohttp
from PIL import Image

BOARD = ("--virtual", "agx-orin-64gb")
JOB = ("--latency-bound-ratio", "1.3", "--sampler", "joule", "--seed", "1")
_MOST_BYTES = 400_000
_WAIT_S = 20.0
_LEAST_NUMBERS = 60
# How many of the document's numbers there are, and how many are not what the result says at their path.
_TOLD = """(told => [...document.querySelectorAll("data[data-json]")].map(each => JSON.parse(each.value) ===
each.dataset.json.split(".").reduce((value, part) => value === null ? null : value[part], told))
)(JSON.parse(document.getElementById("tune-json").textContent))"""


@dataclass(frozen=True, slots=True)
class View:
    """One way of looking at a page. `name` "": only measured, no picture."""

    name: str
    width: int
    theme: str


VIEWS = (
    View("light", 1040, "light"),
    View("dark", 1040, "dark"),
    View("narrow", 390, "light"),
    View("", 320, "light"),
    View("", 700, "dark"),
    View("", 1920, "light"),
)


@dataclass
class Browser:
    """One page of a browser, by its DevTools protocol. `requests`: every address that it asked for."""

    socket: aiohttp.ClientWebSocketResponse[Any]
    requests: list[str] = field(default_factory=list)
    _numbers: Any = field(default_factory=lambda: count(1))

    async def call(self, method: str, *, until: str = "", **parameters: Any) -> dict[str, Any]:
        """The answer, once the event `until` has come too."""
        number = next(self._numbers)
        await self.socket.send_json({"id": number, "method": method, "params": parameters})
        answer: dict[str, Any] | None = None
        is_over = not until
        while answer is None or not is_over:
            message = await self.socket.receive_json(timeout=_WAIT_S)
            if message.get("method") == "Network.requestWillBeSent":
                self.requests.append(message["params"]["request"]["url"])
            is_over = is_over or message.get("method") == until
            if message.get("id") == number:
                answer = message.get("result", {})
        return answer

    async def number(self, expression: str) -> int:
        """What an expression comes to on the page."""
        answer = await self.call("Runtime.evaluate", expression=expression)
        return int(answer["result"]["value"])


@asynccontextmanager
async def browser(program: str, folder: Path) -> AsyncIterator[Browser]:
    """A headless one with a profile of its own below `folder`."""
    options = ("--headless", "--no-sandbox", "--disable-gpu", "--hide-scrollbars", "--remote-debugging-port=0")
    folder.mkdir(exist_ok=True)
    log = (folder / "browser.log").open("wb")
    child = subprocess.Popen([program, *options, f"--user-data-dir={folder}", "about:blank"], stdout=log, stderr=log)
    try:
        port = await _port(folder / "DevToolsActivePort")
        async with aiohttp.ClientSession() as session:
            async with session.get(f"http://127.0.0.1:{port}/json/list") as answer:
                (page, *_) = [one for one in await answer.json() if one["type"] == "page"]
            async with session.ws_connect(page["webSocketDebuggerUrl"], max_msg_size=0) as socket:
                yield Browser(socket)
    finally:
        child.terminate()
        child.wait(timeout=_WAIT_S)
        log.close()


async def _port(path: Path) -> int:
    for _ in range(int(_WAIT_S / 0.1)):
        if path.exists() and (lines := path.read_text().split()):
            return int(lines[0])
        await asyncio.sleep(0.1)
    raise TimeoutError(f"{path}: the browser does not say its port")


async def look(page: Path, view: View, on: Browser) -> tuple[bytes, list[str]]:
    """A picture of the whole page, and what is wrong with it."""
    await on.call("Network.enable")
    await on.call("Page.enable")
    media = [{"name": "prefers-color-scheme", "value": view.theme}]
    await on.call("Emulation.setEmulatedMedia", features=media)
    size: dict[str, Any] = {"width": view.width, "deviceScaleFactor": 1, "mobile": False}
    await on.call("Emulation.setDeviceMetricsOverride", height=900, **size)
    on.requests.clear()
    await on.call("Page.navigate", until="Page.loadEventFired", url=page.as_uri())
    wrong = [f"{url[:80]} was asked for" for url in on.requests if not url.startswith(("data:", page.as_uri()))]
    wide = await on.number("document.documentElement.scrollWidth")
    if wide > view.width:
        wrong.append(f"at {view.width} px the page is {wide} px wide")
    if (numbers := await on.number(f"{_TOLD}.length")) < _LEAST_NUMBERS:
        wrong.append(f"the page has only {numbers} numbers of the result")
    if (others := await on.number(f"{_TOLD}.filter(same => !same).length")) > 0:
        wrong.append(f"{others} numbers of the page are not those of the result")
    height = await on.number("document.documentElement.scrollHeight")
    await on.call("Emulation.setDeviceMetricsOverride", height=height, **size)
    shot = await on.call("Page.captureScreenshot", format="png")
    return _small(base64.b64decode(shot["data"])), wrong


def _small(png: bytes) -> bytes:
    """With a palette: text and lines have few colours."""
    image = (
        Image.open(io.BytesIO(png))
        .convert("RGB")
        .quantize(256, method=Image.Quantize.FASTOCTREE, dither=Image.Dither.NONE)
    )
    out = io.BytesIO()
    image.save(out, format="png", optimize=True)
    return out.getvalue()


async def captures(page: Path, out: Path, program: str, folder: Path) -> list[str]:
    """Write the pictures; what is wrong."""
    wrong: list[str] = []
    async with browser(program, folder) as on:
        for view in VIEWS:
            png, found = await look(page, view, on)
            wrong += found
            if view.name:
                (out / f"report-{view.name}.png").write_bytes(png)
                print(f"report-{view.name}.png: {view.width} px wide, {len(png) / 1e3:.0f} kB")
                wrong += [f"report-{view.name}.png is too large"] if len(png) > _MOST_BYTES else []
    return wrong


def main() -> int:
    """Say what was made and what is wrong."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--out", type=Path, default=Path("docs/img"))
    parser.add_argument("--browser", default="chromium")
    parser.add_argument("--state", type=Path, help="a state folder that holds the job")
    parser.add_argument("--job", default="latest")
    arguments = parser.parse_args()
    arguments.out.mkdir(parents=True, exist_ok=True)
    jouled = (sys.executable, "-m", "jouled.cli")
    with tempfile.TemporaryDirectory() as temporary:
        folder = Path(temporary)
        state = arguments.state or folder / "state"
        where = (*BOARD, "--state-dir", str(state))
        if arguments.state is None:
            subprocess.run([*jouled, "tune", *where, *JOB], check=True, capture_output=True)
        subprocess.run([*jouled, "report", arguments.job, *where, "--out", str(folder / "report")], check=True)
        page = folder / "report" / "index.html"
        wrong = asyncio.run(captures(page, arguments.out, arguments.browser, folder / "profile"))
    print("\n".join(wrong) or "nothing was loaded, nothing scrolls sideways, all numbers are those of the result")
    return 1 if wrong else 0


if __name__ == "__main__":
    sys.exit(main())
