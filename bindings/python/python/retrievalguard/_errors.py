"""Exceptions of the package; each is also one of Python's own kinds."""

from __future__ import annotations

import importlib
from typing import Any


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


class MissingPackageError(RetrievalGuardError, ModuleNotFoundError):
    """A package that only some functions need is not installed."""


def optional(module: str, package: str, what: str) -> Any:
    """A module that only some functions need."""
    try:
        return importlib.import_module(module)
    except ModuleNotFoundError as error:
        if error.name != module:
            raise
        raise MissingPackageError(f"{what} needs the package {package}, which is not installed: pip install {package}") from None


# Tracebacks show the names under which users import them.
for _class in (RetrievalGuardError, InputError, FileError, MissingFileError, EncoderError, MissingPackageError):
    _class.__module__ = "retrievalguard"
