"""Publishes once per step that changes the disk, and dies at that step: `python crash_points.py STORE COPIES`.

STORE holds version 1. COPIES/N becomes what a death at the Nth step of publishing version 2 leaves; prints how many
steps there are.
"""

import os
import shutil
import signal
import sys
from pathlib import Path
from typing import Any

import numpy as np

from minefleet.rpc.weights.manifest import describe
from minefleet.v1 import parameters_service_pb2, weights_pb2
from minefleet_parameters.store import open_store

STEPS = ("os.rename", "os.remove", "os.mkdir")


def weights_of(seed: int) -> dict[str, Any]:
    """Three tensors, the first the same for every seed."""
    return {"frozen": np.zeros(9, np.float32), "a": np.full(9, seed, np.float32), "b": np.full(7, -seed, np.int64)}


def publish(store: Path, seed: int) -> None:
    """Publishes the version after the newest."""
    manifest, parts = describe(weights_of(seed))
    with open_store(store, keep=1) as opened:
        epoch = opened.open_epoch("run", 0, 0)
        header = parameters_service_pb2.PublishHeader(
            run_id="run", epoch=epoch.epoch, expected_version=epoch.newest_version, manifest=manifest
        )
        upload = opened.begin(header)
        upload.start()
        for digest, part in parts.items():
            upload.write([weights_pb2.TensorPiece(digest=digest, data=part.tobytes())])
        opened.commit(upload)
        upload.close()
        opened.purge()


def die_at(step: int) -> None:
    """Ends this process just before the `step`th change of the disk."""
    left = [step]

    def count(event: str, arguments: tuple[Any, ...]) -> None:
        writes = event == "open" and isinstance(arguments[1], str) and arguments[1] not in ("r", "rb")
        left[0] -= writes or event in STEPS
        if left[0] <= 0:
            os.kill(os.getpid(), signal.SIGKILL)

    sys.addaudithook(count)


def main() -> None:
    """Dies at every step, each time on a copy."""
    store, copies = map(Path, sys.argv[1:])
    publish(store, 1)
    step, alive = 0, False
    while not alive:
        step += 1
        copy = copies / str(step)
        shutil.copytree(store, copy)
        child = os.fork()
        if child == 0:
            die_at(step)
            publish(copy, 2)
            os._exit(0)
        alive = os.waitpid(child, 0)[1] == 0
    sys.stdout.write(f"{step - 1}\n")


if __name__ == "__main__":
    main()
