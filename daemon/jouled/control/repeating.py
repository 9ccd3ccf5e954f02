"""Work that is done again and again beside the servers, in their loop."""

from __future__ import annotations

import asyncio
import logging
import math
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager, suppress

log = logging.getLogger(__name__)


@asynccontextmanager
async def repeating(period_s: float, work: Callable[[], None]) -> AsyncIterator[None]:
    """`work` each `period_s` while the block lasts, first as soon as the loop turns. A late turn is not made up for."""
    task = asyncio.get_running_loop().create_task(_repeat(period_s, work))
    task.add_done_callback(_tell)
    try:
        yield
    finally:
        task.cancel()
        with suppress(asyncio.CancelledError):
            await task


async def _repeat(period_s: float, work: Callable[[], None]) -> None:
    now_s = asyncio.get_running_loop().time
    due_s = now_s()
    while True:
        work()
        due_s += period_s * max(1, math.ceil((now_s() - due_s) / period_s))
        await asyncio.sleep(max(0.0, due_s - now_s()))


def _tell(task: asyncio.Task[None]) -> None:
    """What `work` did not expect ends it alone: the servers go on, and the end of the block raises it."""
    if not task.cancelled() and (error := task.exception()) is not None:
        log.error("it is not done any more: %s", error, exc_info=error)
