"""One small file per case; each has a tuple CASES."""

from __future__ import annotations

import importlib
import pkgutil

from bench.harness import Case


def all_cases() -> list[Case]:
    """All cases, in the order of their file names."""
    modules = [importlib.import_module(f"{__name__}.{found.name}") for found in pkgutil.iter_modules(__path__)]
    return [case for module in modules for case in module.CASES]
