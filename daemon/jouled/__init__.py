"""jouled: the power-mode autotuning daemon for NVIDIA Jetson boards."""

__version__ = "0.1.0"
