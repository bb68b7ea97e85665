"""A learner that leases, reads and acks what actors send, and does nothing with it: for `benchmarks/replay_fleet.py`.

    python -m harness.fleet_consumer RUN_DIR ADDRESS

Takes whole iterations until it is terminated. The bytes are not even parsed, so that this process costs little.
"""

import sys
from itertools import count
from pathlib import Path

from harness.log_server import as_is
from harness.replaying import LEARNER
from minefleet.rpc.channel import connect
from minefleet.rpc.replay_client import ReplayClient
from minefleet.runs.run_yaml import read_run
from minefleet.v1 import replay_service_pb2, status_service_pb2

WAIT_S = 1.0


def main() -> None:
    run, address = read_run(Path(sys.argv[1])), sys.argv[2]
    identity = run.identity(status_service_pb2.ROLE_LEARNER)
    learner = replay_service_pb2.Learner(run_id=LEARNER.run_id, epoch=LEARNER.epoch, version=LEARNER.version)
    read = connect(address).unary_stream(
        "/minefleet.v1.ReplayService/Read", replay_service_pb2.ReadRequest.SerializeToString, as_is
    )
    steps = run.config.train_config.fragments_per_iteration * run.config.rollout_config.fragment_length
    client = ReplayClient(address, identity=identity, position=LEARNER)
    for number in count(1):
        while not client.lease(number, steps=steps, use_version=1, wait_s=WAIT_S).chunks:
            continue
        for _ in read(replay_service_pb2.ReadRequest(learner=learner, lease=number)):
            continue
        client.ack(number)


if __name__ == "__main__":
    main()
