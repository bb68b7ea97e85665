import os
import subprocess
import sys
from pathlib import Path

import pytest

from minefleet.launch.machine import visible

COUNT = "from minefleet.launch.machine import count_gpus; print(count_gpus())"
TWO_GPUS = """#!/bin/sh
test "$1" = -L || exit 9
echo 'GPU 0: NVIDIA H200 (UUID: GPU-1)'
echo '  MIG 1g.18gb     Device  0: (UUID: MIG-1)'
echo 'GPU 1: NVIDIA H200 (UUID: GPU-2)'
"""


def counted(tmp_path: Path, tool: str) -> int:
    """The number that a process counts for which this is `nvidia-smi`."""
    path = tmp_path / "nvidia-smi"
    path.write_text(tool)
    path.chmod(0o755)
    environment = os.environ | {"PATH": f"{tmp_path}:{os.environ['PATH']}"}
    done = subprocess.run([sys.executable, "-c", COUNT], env=environment, capture_output=True, text=True, check=True)
    return int(done.stdout)


def test_gpus_are_counted_as_the_driver_lists_them(tmp_path: Path) -> None:
    assert counted(tmp_path, TWO_GPUS) == 2


def test_gpus_are_counted_by_device_files_where_the_drivers_tool_fails(tmp_path: Path) -> None:
    devices = [path for path in Path("/dev").iterdir() if path.name.removeprefix("nvidia").isdigit()]
    assert counted(tmp_path, "#!/bin/sh\nexit 9\n") == len(devices)


@pytest.mark.parametrize(
    ("count", "variable", "expected"),
    [
        (2, None, ("0", "1")),
        (4, "2, 0", ("2", "0")),
        (2, "", ()),
        (2, "-1", ()),
        (2, "1,7,0", ("1",)),
        (2, "GPU-2,MIG-1", ("GPU-2", "MIG-1")),
        (0, "0,1", ()),
    ],
)
def test_gpus_that_are_hidden_outside_stay_hidden(count: int, variable: str | None, expected: tuple[str, ...]) -> None:
    environment = {} if variable is None else {"CUDA_VISIBLE_DEVICES": variable}
    assert visible(count, environment) == expected
