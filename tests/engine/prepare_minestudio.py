"""Prepares MineStudio: its launcher finds our `java` and `xvfb-run` on the path, and a jar in its engine's place."""

import os
from pathlib import Path

from .prepared import LOGS, TAG, Prepared, start_engine, write_script

JAR = Path("engine", "build", "libs", "mcprec-6.13.jar")


def prepare(python: str, directory: Path) -> Prepared:
    """Makes in a folder what MineStudio needs, played by this interpreter.

    Its launcher runs `xvfb-run -a java ... -jar JAR --envPort=PORT`. The jar is empty.
    """
    write_script(directory / "bin" / "java", start_engine())
    write_script(directory / "bin" / "xvfb-run", "shift", 'exec "$@"')
    jar = directory / "minestudio" / JAR
    jar.parent.mkdir(parents=True)
    jar.touch()
    return Prepared(
        python=python,
        variables={
            "PATH": f"{directory / 'bin'}{os.pathsep}{os.environ['PATH']}",
            "MINESTUDIO_DIR": str(directory / "minestudio"),
            TAG: str(directory),
            LOGS: str(directory / "logs"),
        },
    )
