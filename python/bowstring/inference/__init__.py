"""Models as servers: rows in, predictions out, in micro-batches over all clients.

:func:`serve_model` serves a function, :class:`ModelClient` calls it. ``docs/spark.md`` shows both in Structured Streaming.
"""

from bowstring.inference.client import ModelClient
from bowstring.inference.server import ModelServer, serve_model

__all__ = ["ModelClient", "ModelServer", "serve_model"]
