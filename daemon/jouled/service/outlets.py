"""Where the metrics go while the daemon runs: the port, the textfile, and the joules that are counted for them."""

from __future__ import annotations

from collections.abc import AsyncIterator
from contextlib import AsyncExitStack, asynccontextmanager
from functools import partial
from pathlib import Path

from jouled.config.tables import MetricsTable
from jouled.control.metrics_port import MetricsPort
from jouled.control.repeating import repeating
from jouled.control.textfile import WRITE_EVERY_S, Textfile
from jouled.service.face import Service


@asynccontextmanager
async def outlets(service: Service, table: MetricsTable) -> AsyncIterator[None]:
    """All that `table` asks for. What cannot be had is said in the status, and all else goes on."""
    outlook = service.outlook
    async with AsyncExitStack() as stack:
        if table.energy_counter_hz > 0.0:
            period_s = 1.0 / table.energy_counter_hz
            await stack.enter_async_context(repeating(period_s, partial(outlook.view.count_energy, period_s)))
        if table.listen or table.textfile is not None:
            from jouled.metrics import Exposition  # 0.5 MiB that a daemon without metrics does not need

            render = Exposition(service.status).render
            if table.listen:
                port = MetricsPort(render, table.listen, partial(outlook.say, "metrics.listen"))
                await port.start()
                stack.push_async_callback(port.stop)
            if table.textfile is not None:
                textfile = Textfile(Path(table.textfile), render, partial(outlook.say, "metrics.textfile"))
                stack.callback(textfile.remove)
                await stack.enter_async_context(repeating(WRITE_EVERY_S, textfile.write))
        yield
