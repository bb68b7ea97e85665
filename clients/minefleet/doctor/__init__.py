"""Checks a machine and the interpreter of the environments: lists what is missing, and what to do.

Nothing is imported or run but interpreters, Java and `nvidia-smi`, asked for their versions: no code of the user's, no
game. What a Minecraft package needs is looked at only where the interpreter has one.
"""

from collections.abc import Iterator
from pathlib import Path

from minefleet.config import FleetConfig
from minefleet.doctor.finding import Finding, Level
from minefleet.doctor.interpreter import check_interpreter, inspect_python
from minefleet.doctor.machine_checks import check_machine
from minefleet.doctor.minecraft_checks import MINERL, MINESTUDIO, check_minecraft

__all__ = ["Finding", "Level", "examine"]

MINERL_PREFIX = "minefleet_env.minecraft.minerl_env:"
"""Generators that need MineRL."""
SHM = Path("/dev/shm")


def examine(config: FleetConfig, directory: Path, shared_memory: Path = SHM) -> Iterator[Finding]:
    """Yields what is found, in an order to read.

    Args:
        config: Names the interpreter, the addresses and the bounds on disk.
        directory: Where runs go.
        shared_memory: Where the system has it.
    """
    yield from check_machine(config, directory, shared_memory)
    looked = inspect_python(config.env.python)
    if isinstance(looked, Finding):
        yield looked
        return
    yield from check_interpreter(looked)
    if config.env.generator.startswith(MINERL_PREFIX) and MINERL not in looked["packages"]:
        text = f"{looked['name']} has none, and the environment wants it: name an interpreter that has by env.python"
        yield Finding(level=Level.PROBLEM, subject=MINERL, text=text)
    if {MINERL, MINESTUDIO} & set(looked["packages"]):
        yield from check_minecraft(looked)
