"""Errors of the tuner.

JouletuneError
├── SpaceError          a grid that cannot be built or addressed
├── MeasurementError    numbers that do not make a measurement
├── SearchError         a search asked for what it cannot do
├── ProtocolError       a line of a conversation that is not of its protocol
└── DecisionError       finals or a decision fed with what does not fit
"""

from __future__ import annotations


class JouletuneError(Exception):
    """Root of the tuner's errors."""


class SpaceError(JouletuneError):
    """A grid cannot be built or addressed."""


class MeasurementError(JouletuneError):
    """Numbers that do not make a measurement."""


class SearchError(JouletuneError):
    """A search was asked for what it cannot do."""


class ProtocolError(JouletuneError):
    """A line of a conversation is not of its protocol."""


class DecisionError(JouletuneError):
    """Finals or a decision were fed with what does not fit."""
