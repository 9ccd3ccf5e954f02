"""Puts the service on a machine and takes it off again: users, folders, units, configuration."""
