"""A role that does as it is told, for tests of the supervisor: `python stand_in_role.py DIRECTORY NAME LIFE,LIFE,...`.

It lives the n-th life when it is started for the n-th time, and the last one from then on:

    serve       until SIGTERM, then exit code 0
    stubborn    ignores SIGTERM
    die         says so and exits with 1
    config      says so and exits with 2
    again       says so and exits with 4
    kill        kills itself with SIGKILL
    finish:N    exits with 0 when N other lives have begun

DIRECTORY/events gets a line for every start and every SIGTERM; DIRECTORY/starts is a FIFO with a byte for every start.
"""

import os
import signal
import sys
from pathlib import Path

from minefleet.core.parent_death import die_with_launcher


def main() -> None:
    directory, name, lives = Path(sys.argv[1]), sys.argv[2], sys.argv[3].split(",")
    die_with_launcher()
    signal.pthread_sigmask(signal.SIG_BLOCK, {signal.SIGTERM})
    number = note(directory, f"{name} starts as {os.getpid()}").count(f"{name} starts")
    starts = os.open(directory / "starts", os.O_RDWR)
    life, _, count = lives[min(number, len(lives)) - 1].partition(":")
    if life == "finish":
        for _ in range(int(count)):
            os.read(starts, 1)
        return
    os.write(starts, b".")
    live(directory, name, life)


def live(directory: Path, name: str, life: str) -> None:
    if life in ("serve", "stubborn"):
        signal.sigwait({signal.SIGTERM})
        note(directory, f"{name} is asked to stop")
    if life == "stubborn":
        signal.sigwait({signal.SIGUSR1})
    if life == "kill":
        os.kill(os.getpid(), signal.SIGKILL)
    if life in ("die", "config", "again"):
        sys.stderr.write(f"first words\nlast words of {name}\n")
        sys.exit({"die": 1, "config": 2, "again": 4}[life])


def note(directory: Path, event: str) -> str:
    with (directory / "events").open("a") as events:
        events.write(event + "\n")
    return (directory / "events").read_text()


if __name__ == "__main__":
    main()
