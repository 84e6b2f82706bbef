"""Exceptions of the package; each is also one of Python's own kinds."""

from __future__ import annotations


class RetrievalGuardError(Exception):
    """Base of everything that the package raises by itself."""


class InputError(RetrievalGuardError, ValueError):
    """An input cannot be used; the message names what was found and what was wanted."""


class FileError(RetrievalGuardError, OSError):
    """A file could not be read or written."""


class MissingFileError(FileError, FileNotFoundError):
    """A file is not there."""


class EncoderError(RetrievalGuardError, RuntimeError):
    """An encoder failed on valid input."""


# Tracebacks show the names under which users import them.
for _class in (RetrievalGuardError, InputError, FileError, MissingFileError, EncoderError):
    _class.__module__ = "retrievalguard"
