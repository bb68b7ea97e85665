"""A learner and an actor that write down what they do, until they are killed.

    python witnesses.py learner ADDRESS RECORD RUN EPOCH VERSION
    python witnesses.py actor ADDRESS RECORD

The learner resumes from the checkpoint EPOCH, VERSION and publishes version after version. It writes into RECORD what
it is about to publish, when that was acked, and when it was fenced. The actor writes what it has fetched.
"""

import hashlib
import json
import sys
from pathlib import Path
from typing import Any, TextIO

import numpy as np
from numpy.typing import NDArray

from minefleet.core.errors import FencedError, NotFoundError
from minefleet.rpc.parameters_client import ParametersClient

TENSORS = 6
TENSOR_BYTES = 2**19


def weights_of(epoch: int, version: int) -> dict[str, NDArray[Any]]:
    """No other epoch or version has these, but for the frozen half."""
    frozen, trained = np.random.default_rng(0), np.random.default_rng([epoch, version])
    return {
        f"layer.{index}": (trained if index % 2 else frozen).standard_normal(TENSOR_BYTES // 4 + index, np.float32)
        for index in range(TENSORS)
    }


def checksum(weights: dict[str, NDArray[Any]]) -> str:
    """Equal for equal names, dtypes, shapes and bytes; owes nothing to the digests of the service."""
    whole = hashlib.sha256()
    for name, array in weights.items():
        whole.update(f"{name} {array.dtype} {array.shape} ".encode() + array.tobytes())
    return whole.hexdigest()


def write(record: TextIO, **row: Any) -> None:
    """One line."""
    record.write(json.dumps(row) + "\n")


def publish(client: ParametersClient, record: TextIO, run_id: str, epoch: str, version: str) -> None:
    """Is the learner."""
    opened = client.open_epoch(run_id, int(epoch), int(version))
    newest = opened.newest_version
    while True:
        weights = weights_of(opened.epoch, newest + 1)
        said = {"epoch": opened.epoch, "version": newest + 1, "checksum": checksum(weights)}
        write(record, **said, acked=False)
        try:
            newest = client.publish(weights, iteration=newest)
        except FencedError as error:
            write(record, fenced=str(error))
            return
        write(record, **said, acked=newest == said["version"])


def read(client: ParametersClient, record: TextIO) -> None:
    """Is the actor."""
    seen = 0
    for announced in client.watch():
        if announced.version == seen:
            continue
        try:
            info, weights = client.fetch()
        except NotFoundError:
            continue
        seen = info.version
        write(record, epoch=info.epoch, version=info.version, checksum=checksum(weights))


def main() -> None:
    """Is one of them."""
    role, address, path, *rest = sys.argv[1:]
    with Path(path).open("a", buffering=1) as record:
        if role == "learner":
            publish(ParametersClient(address), record, *rest)
        else:
            read(ParametersClient(address), record)


if __name__ == "__main__":
    main()
