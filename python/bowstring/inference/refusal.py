"""The refusal of what a client of a model sends, on the wire."""

from __future__ import annotations

import pyarrow.flight as flight

__all__ = ["is_refusal", "refused"]

_MARK = b"refused"


def refused(why: str) -> flight.FlightServerError:
    """The error to raise. Other kinds of errors take the server's traceback, with its paths, to the client."""
    return flight.FlightServerError(why, _MARK)


def is_refusal(error: BaseException) -> bool:
    """True for the error that a client has of :func:`refused`: sending the same again does not help."""
    return isinstance(error, flight.FlightServerError) and error.extra_info == _MARK
