"""Objects of the user's own modules, by import path."""

from __future__ import annotations

import importlib
import os
import sys


def import_object(path: str, default: str) -> object:
    """The object at ``module:name``; the current folder is importable.

    Args:
        path: the import path; the name may have dots.
        default: the name where the path has none.

    Raises:
        ValueError: there is no such module, or nothing of that name in it. An error inside the
            module itself is raised as it is.
    """
    module_name, _, name = path.partition(":")
    folder = os.getcwd()  # noqa: PTH109 - an import path is a string
    if folder not in sys.path:
        sys.path.insert(0, folder)
    try:
        found: object = importlib.import_module(module_name)
    except ModuleNotFoundError as error:
        if error.name is None or not f"{module_name}.".startswith(f"{error.name}."):
            raise
        raise ValueError(f"there is no module {module_name!r}") from error
    for part in (name or default).split("."):
        try:
            found = getattr(found, part)
        except AttributeError as error:
            raise ValueError(f"{path}: {error}") from error
    return found
