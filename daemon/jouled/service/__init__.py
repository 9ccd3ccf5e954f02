"""The daemon: what should be in force, who may ask for what, and the one client of the worker."""
