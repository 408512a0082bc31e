"""What Petastorm raises and no built-in exception says. Everything else is built in, or bowstring's where Petastorm had none."""

from __future__ import annotations

__all__ = ["DecodeFieldError", "NoDataAvailableError", "PetastormMetadataError", "PetastormMetadataGenerationError"]


class NoDataAvailableError(Exception):
    """There are fewer row groups than shards, so that some shard would be empty: ask for fewer, or write smaller row groups."""


class PetastormMetadataError(Exception):
    """The dataset has no schema of Petastorm's."""


class PetastormMetadataGenerationError(Exception):
    """The metadata that was written cannot be read back."""


class DecodeFieldError(RuntimeError):
    """A stored value does not decode."""
