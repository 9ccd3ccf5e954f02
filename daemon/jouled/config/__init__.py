"""The configuration: config.toml, checked as a whole before anything is done (stdlib, and tomli on 3.10)."""

from jouled.config.kinds import Shape
from jouled.config.load import CONFIG_PATH, REQUEST_KEYS, load
from jouled.config.owner import check_owner
from jouled.config.show import render
from jouled.config.tables import Config, WorkloadEntry

__all__ = ["CONFIG_PATH", "REQUEST_KEYS", "Config", "Shape", "WorkloadEntry", "check_owner", "load", "render"]
