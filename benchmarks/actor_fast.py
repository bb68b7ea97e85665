"""Two actors of 32 environments that cost nothing, against Gymnasium, Sample Factory, and the bare forward pass.

    python benchmarks/actor_fast.py [--rounds 3] [--seconds 20]

Steps per second on two cores, of environments that show frames of Crafter from a bank, with a policy of three
convolutions, a dense layer and a GRU of 256. Each round runs all sides in turn, a different one first each time.

    ours            two real actors, one per core as fast environments want it, with their replay and parameters: every
                    step is recorded, stored and acked
    gymnasium-N     `AsyncVectorEnv` with shared memory, and our policy step by step on N threads; nothing is recorded;
                    the better of both is the peer
    sample-factory  its sampler with a policy of the same size, without a learner; trajectories stay in memory
    forward-1       our policy on batches of 64 frames in memory, on one thread as in ours: the limit
"""

import argparse
import sys
from typing import Any

from harness.acting import SLOTS, act, config_of, share_cores
from harness.acting_envs import make_bank
from harness.acting_parts import FRAMES_POLICY
from harness.peers import PEERS, figure, install
from harness.report import line, medians, table

SIDES = ("ours", "gymnasium-1", "gymnasium-2", "sample-factory", "forward-1")
WARM_UP_S = 5.0
ACTORS = 2
WORKER = {"envs_per_process": SLOTS // ACTORS, "min_batch_size": SLOTS // ACTORS}


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--rounds", type=int, default=3)
    parser.add_argument("--seconds", type=float, default=20.0)
    parser.add_argument("--side", nargs="+", choices=SIDES, default=SIDES)
    parser.add_argument("--compression", default="lz4", choices=("zstd", "lz4", "none"))
    parser.add_argument("--worker", nargs="*", default=[], metavar="KEY=VALUE", help="keys of worker_config")
    arguments = parser.parse_args()
    share_cores()
    make_bank()
    rounds = []
    for number in range(arguments.rounds):
        turn = number % len(arguments.side)
        order = [*arguments.side[turn:], *arguments.side[:turn]]
        figures = {side: measure(side, arguments) for side in order}
        rounds.append({side: figures[side] for side in arguments.side})
    print(table("steps/s", rounds, digits=0))
    if tuple(arguments.side) == SIDES:
        middle = medians(rounds)
        peers = {
            "gymnasium": max(middle["gymnasium-1"], middle["gymnasium-2"]),
            "sample-factory": middle["sample-factory"],
        }
        for case, peer in peers.items():
            print(line("actor_fast", case, "steps/s", middle["ours"], peer=peer, limit=middle["forward-1"]))


def measure(side: str, arguments: argparse.Namespace) -> float:
    """Steps per second of a side."""
    if side == "ours":
        return act(config(arguments), warm_up_s=WARM_UP_S, seconds=arguments.seconds)
    if side == "sample-factory":
        python = install("sample_factory", constrained=False)
        command = [str(python), str(PEERS / "sample_factory_frames.py"), str(SLOTS), str(arguments.seconds)]
        return figure(command, OMP_NUM_THREADS="1")
    kind, _, threads = side.partition("-")
    return figure([sys.executable, "-m", "harness.acting_limit", kind, str(arguments.seconds), threads])


def config(arguments: argparse.Namespace) -> dict[str, Any]:
    """The actor's configuration."""
    changed = dict(pair.split("=") for pair in arguments.worker)
    return config_of(
        {"generator": "harness.acting_envs:Frames"},
        FRAMES_POLICY,
        WORKER | {key: int(value) for key, value in changed.items()},
        actors=ACTORS,
        fragment_length=64,
        to_send_queue_size=2 * SLOTS,
        replay_buffer_config={"compression": arguments.compression},
    )


if __name__ == "__main__":
    main()
