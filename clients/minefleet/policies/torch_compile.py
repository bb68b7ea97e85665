"""Compiled code for policies, where it can be had."""

import logging
from collections.abc import Callable
from typing import Any

import torch

from minefleet.policies.layers.gru import exclude_from_compile

logger = logging.getLogger(__name__)


def compiled(function: Callable[..., Any], try_out: Callable[[Any], object], *, dynamic: bool) -> Any | None:
    """Compiles a function or module; None where that fails, and a log line says so.

    Args:
        function: What to compile.
        try_out: Called with the outcome, to run it as it will be run: code is made then.
        dynamic: Whether one piece of code serves all sizes.
    """
    exclude_from_compile()
    try:
        outcome = torch.compile(function, dynamic=dynamic)
        try_out(outcome)
    except Exception as error:  # noqa: BLE001  # A compiler may fail in any way; what it was given still works.
        logger.warning("the policy runs uncompiled, torch.compile failed: %s", headline(error))
        return None
    return outcome


def headline(error: Exception) -> str:
    """The type of an error and the first paragraph of what it says, in one line."""
    return " ".join(f"{type(error).__name__}: {error}".split("\n\n")[0].split())
