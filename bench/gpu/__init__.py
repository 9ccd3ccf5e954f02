"""The parts of bench/gpu_host.py: one chain after the other on a real NVIDIA GPU, each with its figures."""
