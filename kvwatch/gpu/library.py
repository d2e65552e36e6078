"""The NVML binding, every call through one gate: what it raises becomes a ``Refused`` with a number.

The binding's own exceptions cannot be compared or hashed, some are plain ``Exception``s, and older packages of the same import name
lack functions. All of that ends here.
"""

from __future__ import annotations

import importlib
import warnings
from importlib import metadata

UNINITIALIZED = 1
INVALID_ARGUMENT = 2
NOT_SUPPORTED = 3
NO_PERMISSION = 4
NOT_FOUND = 6
INSUFFICIENT_SIZE = 7
DRIVER_NOT_LOADED = 9
LIBRARY_NOT_FOUND = 12
FUNCTION_NOT_FOUND = 13
GPU_IS_LOST = 15
RESET_REQUIRED = 16
LIBRARY_MISMATCH = 18
ARGUMENT_VERSION_MISMATCH = 25
UNNUMBERED = -1
"""For what the binding raised without one of NVML's numbers."""

PACKAGES = ("nvidia-ml-py", "pynvml", "nvidia-ml-py3")
"""Distributions that provide a module of this name; only the first is the right one."""
NEEDED = ("nvmlInit", "nvmlDeviceGetCount", "nvmlDeviceGetHandleByIndex", "nvmlDeviceGetUUID", "nvmlDeviceGetMemoryInfo")


class Refused(Exception):
    """NVML, or its binding, did not answer: NVML's error number, and a text for people."""

    def __init__(self, number: int, text: str) -> None:
        super().__init__(text)
        self.number = number


class Misfit(Exception):
    """There is no usable binding; one sentence that names what is installed."""


class Library:
    """A module with NVML's functions."""

    def __init__(self, module: object) -> None:
        self._module = module

    def constant(self, name: str) -> int | None:
        """A number the binding defines, or None when it is too old to have it."""
        value = getattr(self._module, name, None)
        return value if isinstance(value, int) else None

    def call(self, name: str, *args: object, **options: object) -> object:
        """Call a function of NVML. Raises Refused for everything that is not an answer; may never return."""
        function = getattr(self._module, name, None)
        if function is None:
            raise Refused(FUNCTION_NOT_FOUND, f"the installed pynvml has no {name}")
        try:
            return function(*args, **options)
        except Exception as error:  # noqa: BLE001  the binding also raises plain exceptions for a driver older than itself
            value = getattr(error, "value", None)
            old = isinstance(error, AttributeError) or type(error).__name__ == "NVMLLibraryMismatchError"
            number = value if isinstance(value, int) else FUNCTION_NOT_FOUND if old else UNNUMBERED
            raise Refused(number, str(error) or type(error).__name__) from None


def import_library() -> Library:
    """Import the binding. Raises Misfit when there is none that works.

    It takes 19 MiB and 55 ms, so only who watches GPUs imports it; a package that warns about itself must not end the program.
    """
    try:
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")
            module = importlib.import_module("pynvml")
    except Exception as error:  # noqa: BLE001  a broken package raises anything
        msg = f"pynvml cannot be imported ({error}); installed: {_installed()}; install nvidia-ml-py alone"
        raise Misfit(msg) from None
    lacking = [name for name in NEEDED if not hasattr(module, name)]
    if lacking:
        msg = f"the installed pynvml has no {lacking[0]}; installed: {_installed()}; install nvidia-ml-py alone"
        raise Misfit(msg)
    return Library(module)


def _installed() -> str:
    found = []
    for name in PACKAGES:
        try:
            found.append(f"{name} {metadata.version(name)}")
        except metadata.PackageNotFoundError:
            continue
    return ", ".join(found) or "none of its packages"
