"""Servers, gangs and connections: everything that speaks Arrow Flight, except the loader, which does so by itself.

:class:`Server` serves datasets from this process. :class:`Gang` is a rank's membership in a group that starts and restarts as one.
:class:`Connection` writes rows to a server and reads them back as they are stored; it needs pyarrow.
"""

from typing import TYPE_CHECKING, Any

from bowstring.flight.gang import Gang, Member
from bowstring.flight.server import Server, Write

if TYPE_CHECKING:
    from bowstring.flight.connection import Address, Connection, Rows, attempt_of, is_server, pieces

__all__ = [
    "Address",
    "Connection",
    "Gang",
    "Member",
    "Rows",
    "Server",
    "Write",
    "attempt_of",
    "is_server",
    "pieces",
]


def __getattr__(name: str) -> Any:
    # The connection needs pyarrow; servers and gangs do not.
    if name in __all__:
        import bowstring.flight.connection

        return getattr(bowstring.flight.connection, name)
    raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
