"""`jouled watch`: the service as it changes, and the job that runs. A picture in a terminal, elsewhere lines."""

from __future__ import annotations

import argparse
import os
import sys
import threading
import time
from collections.abc import Callable, Mapping, Sequence
from typing import Any

from jouled.board.modename import mode_name
from jouled.cli.arguments import here, options_of
from jouled.cli.client import Client
from jouled.cli.feed import Feed, News
from jouled.cli.jobview import JobView
from jouled.cli.progress import Progress
from jouled.cli.terminal import Terminal, following, is_drawable
from jouled.errors import JouledError
from jouled.job.events import encode
from jouletune.space import PowerMode

_SOON_S = 0.25
_PASSING_S = 1.0
_NOTICE_S = 30.0
_IDLE_KEYS = ("q leaves",)
_JOB_KEYS = ("q leaves, the job goes on; c cancels it", "q leaves, c cancels", "q leaves")
_NO_KEYS = ("Ctrl-C leaves",)

Record = Mapping[str, Any]


def watch(arguments: argparse.Namespace, client: Client) -> int:
    """Show until told to leave. Raises UnreachableError where there is no daemon to begin with."""
    first = client.get("/v1/status")
    if arguments.json or not is_drawable(sys.stdout, os.environ):
        return _told(client, _objects if arguments.json else Lines(options_of(arguments)), first)
    terminal = Terminal(sys.stdout, sys.stdin)
    feed = Feed(client, terminal.wake)
    view = View(client, first, options_of(arguments))
    try:
        terminal.open()
        feed.begin()
        with following(terminal):
            _draw(terminal, feed, view)
    finally:
        feed.end()
        terminal.close()
    return 0


# --- without a terminal ---------------------------------------------------------------------------------------


def _told(client: Client, tell: Callable[[News], None], first: Record) -> int:
    """Each thing that is heard, until we are ended."""
    heard = threading.Event()
    feed = Feed(client, heard.set)
    tell(News(status=first))
    feed.begin()
    try:
        while True:
            heard.wait()
            heard.clear()
            for news in feed.heard():
                tell(news)
    finally:
        feed.end()


def _objects(news: News) -> None:
    """One JSON object a line: events as they are, a status as the event `status`, `away` where nobody answers."""
    if news.event is not None:
        print(encode(news.event), flush=True)
    elif news.status is not None:
        print(encode({"event": "status", "status": news.status}), flush=True)
    else:
        print(encode({"event": "away", "text": news.away}), flush=True)


class Lines:
    """What changes, a line each; a job's as `tune` prints them."""

    def __init__(self, options: str, *, wall_s: Callable[[], float] = time.time) -> None:
        self._options = options
        self._wall_s = wall_s
        self._last = ""
        self._job = ""
        self._progress = Progress(sys.stdout)

    def __call__(self, news: News) -> None:
        """Say it, if it is new."""
        if news.event is not None:
            self._hear(news.event)
            return
        text = _in_a_line(news.status, self._options) if news.status is not None else news.away
        if text != self._last:
            self._last = text
            print(f"{time.strftime('%H:%M:%S', time.localtime(self._wall_s()))}  {text}", flush=True)

    def _hear(self, event: Record) -> None:
        if "t_s" not in event:
            return
        if event.get("job") != self._job:
            self._job, self._progress = str(event.get("job")), Progress(sys.stdout)
        self._progress(event)


def _in_a_line(status: Record, options: str) -> str:
    found, job = status["in_force"], status["job"]
    parts = [str(status["state"])]
    if found is not None:
        seen = "" if job is not None else ", verified" if found["verified"] else ", not verified"
        parts.append(f"{found['source']} {mode_name(PowerMode(**found['mode']))} in force{seen}")
    parts += [str(text) for text in status["mismatches"]]
    parts += [f"job {job['id']}"] if job is not None else []
    to_do = here(str(status["to_do"]), options)
    return "; ".join([*parts, *([f"to do: {to_do}"] if to_do else [])])


# --- in a terminal --------------------------------------------------------------------------------------------


class View:
    """What is shown, made of the news; and what keys do."""

    def __init__(
        self, client: Client, status: Record, options: str = "", *, now_s: Callable[[], float] = time.time
    ) -> None:
        self.job: JobView | None = None
        self.is_left = False
        self._client = client
        self._options = options
        self._now_s = now_s
        self._away = ""
        self._notice = ("", 0.0)
        self._asks = False
        self.status = status
        self._take_status(status)

    def take(self, news: News) -> None:
        """One thing heard."""
        if news.event is not None:
            self._take_event(news.event)
        elif news.status is not None:
            self._away = ""
            self._take_status(news.status)
        else:
            since = time.strftime("%H:%M:%S", time.localtime(self._now_s()))
            self._away = self._away or f"not reachable since {since}, asked again all the time: {news.away}"

    def _take_status(self, status: Record) -> None:
        self.status = {**status, "to_do": here(str(status["to_do"]), self._options)}
        running = status["job"]
        if running is None:
            self.job, self._asks = None, False
        elif self.job is None or self.job.job != running["id"]:
            self.job = JobView(job=running["id"], phase=running["phase"])

    def _take_event(self, event: Record) -> None:
        job = event.get("job")
        if job is None or "t_s" not in event:
            return
        if self.job is None or self.job.job != job:
            if event.get("event") == "finished":
                return
            self.job = JobView(job=str(job))
        self.job.take(event)
        if event.get("event") == "finished":
            self._say(f"job {job}: {self.job.outcome}" + (f": {self.job.reason}" if self.job.reason else ""))

    def _say(self, text: str) -> None:
        self._notice = (text, self._now_s() + _NOTICE_S)

    def notice(self) -> str:
        """What is to be said besides: a question, that nobody answers, what came of a key, how the job ended."""
        if self._asks and self.job is not None:
            return f"cancel job {self.job.job} and put the board back? y: yes, any other key: no"
        text, until_s = self._notice
        return self._away or (text if self._now_s() < until_s else "")

    def press(self, key: str) -> None:
        """One key."""
        if self._asks:
            self._asks = False
            if key in "yY" and self.job is not None:
                self._cancel(self.job)
            else:
                self._say("the job goes on")
        elif key in "qQ":
            self.is_left = True
        elif key in "cC":
            self._asks = self.job is not None and not self.job.is_over
            if not self._asks:
                self._say("no job runs")

    def _cancel(self, job: JobView) -> None:
        try:
            self._client.post(f"/v1/jobs/{job.job}/cancel")
            job.is_stopping = True
            self._say(f"job {job.job} stops, and every knob is put back as it was found")
        except JouledError as error:
            self._say(f"{error}; {error.hint}" if error.hint else str(error))


def _draw(terminal: Terminal, feed: Feed, view: View) -> None:
    """Until the view is left."""
    from jouled.cli.boardpicture import Seen, service_picture
    from jouled.cli.paper import Paper

    def draw(keys: Sequence[str]) -> None:
        seen = Seen(view.status, view.job, time.time(), view.notice())
        terminal.draw(service_picture(seen, Paper(terminal.size(), terminal.encoding), keys))

    drawn_s, size, is_dirty = -_PASSING_S, terminal.size(), True
    while not view.is_left:
        pause_s = _SOON_S if is_dirty or terminal.is_stale or size != terminal.size() else _PASSING_S
        left_s = drawn_s + pause_s - time.monotonic()
        if left_s > 0:
            for key in terminal.wait(left_s):
                view.press(key)
                is_dirty = True
            for news in feed.heard():
                view.take(news)
                is_dirty = is_dirty or news.event is None or news.event.get("event") != "progress"
            continue
        is_dirty, size = False, terminal.size()
        draw(_NO_KEYS if not terminal.has_keys else _IDLE_KEYS if view.job is None else _JOB_KEYS)
        drawn_s = time.monotonic()
    draw((time.strftime("as it was at %H:%M:%S"),))
