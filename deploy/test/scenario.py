"""Runs `compose.sh`'s scenario against the images: a fleet comes up, is scaled, is hurt, learns nevertheless, leaves
nothing.

Only Python's own library, so that it needs no environment; the fleet is looked at as users do, by `docker compose`,
`minefleet status`, the page and Prometheus.
"""

import json
import os
import signal
import subprocess
import sys
import time
import urllib.error
import urllib.request
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any

COMPOSE = sys.argv[1:]
PROJECT = os.environ["COMPOSE_PROJECT_NAME"]
ROLES = ("parameters", "replay", "learner", "actor")
STARTED = ("certificates", "prepare", *ROLES, "host", "watch", "prometheus")
"""All but Grafana, whose image cannot be had without a registry."""
CARTPOLE = "cartpole stop.env_steps=0 train_config.anneal_lr_linearly=false train_config.anneal_clip_linearly=false"
HOSTED = f"{CARTPOLE} rollout_config.worker_config.hosted=true"
IMAGES = os.environ["IMAGES"]
SMALL_MB = 200
BAR = 400.0
"""Mean return of CartPole's training episodes that must be reached after all the kills."""
HEALTHY_S, LEARNING_S = 240.0, 600.0
PLAINTEXT = """
import grpc
from minefleet.v1 import status_service_pb2 as pb, status_service_pb2_grpc as stubs
for address in ("replay:7000", "parameters:7000", "learner:7000", "actor:7000"):
    try:
        stubs.StatusServiceStub(grpc.insecure_channel(address)).Describe(pb.DescribeRequest(), timeout=10)
        print(address, "answers")
    except grpc.RpcError as error:
        print(address, error.code().name)
"""


def main() -> None:
    """Runs all of it; any failure is an exception, and the logs follow it."""
    try:
        images_are_small()
        crafter_trains_as_it_stands()
        cartpole_is_scaled_and_hurt()
        cartpole_is_played_by_hosts()
    except BaseException:
        print(compose("logs", "--tail", "40", checks=False), flush=True)
        raise
    finally:
        compose("down", "--volumes", "--timeout", "60", checks=False)
    nothing_is_left()
    say("all is well, and nothing is left")


def images_are_small() -> None:
    """Replay and parameters have no torch and no tools, and nobody is root."""
    images = {role: json.loads(docker("image", "inspect", f"{IMAGES}-{role}"))[0] for role in ROLES}
    base = json.loads(docker("image", "inspect", os.environ["BASE_IMAGE"]))[0]["Size"]
    sizes = {role: (image["Size"] - base) / 1e6 for role, image in images.items()}
    say("MB over the base: " + ", ".join(f"{role} {size:.0f}" for role, size in sizes.items()))
    assert max(sizes["replay"], sizes["parameters"]) < SMALL_MB, sizes
    assert all(image["Config"]["User"] == "10001:10001" for image in images.values())


def crafter_trains_as_it_stands() -> None:
    with fleet({}):
        until("Crafter trains", lambda: metrics()["iteration"] >= 2, LEARNING_S)
        say(f"Crafter: {metrics()['env_steps']} steps")
        page_asks_for_its_token()
        page_shows_all_roles()


def cartpole_is_scaled_and_hurt() -> None:
    with fleet({"RUN": "cartpole", "CONFIG": CARTPOLE}):
        strangers_are_refused()
        for number in (4, 1):
            scale(number)
        for service in (*ROLES, "prometheus"):
            kill(service)
        first = metrics()["iteration"]
        say(f"all have been killed by iteration {first}")
        until(f"a return of {BAR}", lambda: has_learned(first), LEARNING_S)
        drain()


def cartpole_is_played_by_hosts() -> None:
    """Two hosts have four of the actor's eight slots each, and one is killed."""
    worlds = "rollout_config.worker_config.num_envs=4"
    with fleet({"RUN": "hosted", "CONFIG": HOSTED, "HOST_OVERRIDES": worlds}, "--scale", "host=2"):
        assert len(containers("host")) == 2
        until("hosts play", lambda: metrics()["iteration"] >= 2, LEARNING_S)
        kill("host")
        drain()


@contextmanager
def fleet(variables: dict[str, str], *options: str) -> Iterator[None]:
    """A fleet that is up and healthy, and taken down again."""
    os.environ.update(variables)
    say(f"up: {variables.get('CONFIG', 'the default configuration')}")
    compose("up", "--detach", *options, *STARTED)
    healthy()
    yield
    compose("down", "--timeout", "60")


def strangers_are_refused() -> None:
    """A caller without a certificate reaches no role, from beside them on the network; and no role is published."""
    command = ["run", "--rm", "--no-deps", "--entrypoint", "python", "cli", "-c", PLAINTEXT]
    answers = dict(line.split() for line in compose(*command).splitlines() if line.count(":7000") == 1)
    assert answers == {f"{role}:7000": "UNAVAILABLE" for role in ROLES}, answers
    published = {name: inspect(name)["HostConfig"]["PortBindings"] for name in containers(*ROLES)}
    assert not any(published.values()), published
    say("strangers are refused")


def page_asks_for_its_token() -> None:
    """The page is open to its token, and to nobody else."""
    until("the page is served", lambda: page("/")[0] == 200, HEALTHY_S)
    codes = {shown: page("/api/runs", shown)[0] for shown in ("", "wrong", os.environ["WATCH_TOKEN"])}
    assert list(codes.values()) == [401, 401, 200], codes


def page_shows_all_roles() -> None:
    """As the operator, the page asks every role, and every actor for its slots."""
    run = f"/api/runs/{os.environ.get('RUN', 'default')}"
    states = {role["name"]: role["state"] for role in json.loads(page(f"{run}/status")[1])["roles"]}
    assert len(states) == len(ROLES), states
    assert "unreachable" not in states.values(), states
    (actor,) = json.loads(page(f"{run}/slots")[1])["actors"]
    assert actor["error"] is None, actor
    assert actor["slots"], actor
    say(f"the page shows {', '.join(states)} and {len(actor['slots'])} slots")


def page(path: str, token: str | None = None) -> tuple[int, bytes]:
    """The page's answer, status and body, to a caller who shows a token: its own unless another is given."""
    shown = {"Authorization": f"Bearer {os.environ['WATCH_TOKEN'] if token is None else token}"}
    request = urllib.request.Request(f"http://127.0.0.1:{os.environ['WATCH_PORT']}{path}", headers=shown)
    try:
        with urllib.request.urlopen(request, timeout=10) as answer:
            return answer.status, answer.read()
    except urllib.error.HTTPError as refusal:
        with refusal:
            return refusal.code, refusal.read()


def scale(number: int) -> None:
    """As many actors as that, all seen by Prometheus and by the status."""
    compose("up", "--detach", "--no-recreate", "--scale", f"actor={number}", *STARTED)
    healthy()
    until(f"Prometheus sees {number} actors", lambda: actors_seen() == number, HEALTHY_S)
    actors = [role for role in status()["roles"] if role["name"].startswith("actor-")]
    assert len(actors) == number, actors
    assert len({actor["address"] for actor in actors}) == number, actors
    before = metrics()["iteration"]
    until("training goes on", lambda: metrics()["iteration"] > before, LEARNING_S)
    say(f"{number} actors: {[actor['state'] for actor in actors]}")


def kill(service: str) -> None:
    """Kills a process of a service, as the engine would not know: it comes back and training goes on."""
    name = containers(service)[0]
    before, iteration = inspect(name), metrics()["iteration"]
    os.kill(role_process(before["State"]["Pid"]), signal.SIGKILL)
    until(f"{service} starts again", lambda: inspect(name)["RestartCount"] > before["RestartCount"], HEALTHY_S)
    healthy()
    until("training goes on", lambda: metrics()["iteration"] > iteration + 1, LEARNING_S)
    say(f"{service} was killed at iteration {iteration} and came back")


def role_process(init: int) -> int:
    """The first process below a container's init, or that itself."""
    with open(f"/proc/{init}/task/{init}/children") as file:  # noqa: PTH123  # Plain library, plain file.
        children = file.read().split()
    return int(children[0]) if children else init


def has_learned(after: int) -> bool:
    row = metrics()
    return row["iteration"] > after and (row["episode_return_mean"] or 0.0) >= BAR


def drain() -> None:
    """Stopped by SIGTERM, every role ends with 0: nothing was cut off."""
    names = containers(*ROLES)
    compose("stop", "--timeout", "60")
    codes = {name: inspect(name)["State"]["ExitCode"] for name in names}
    assert not any(codes.values()), codes
    say(f"drained at iteration {metrics()['iteration']}")


def healthy() -> None:
    """Waits until every role is."""
    until("all roles are healthy", all_are_healthy, HEALTHY_S)


def all_are_healthy() -> bool:
    states = [inspect(name)["State"] for name in containers(*ROLES)]
    return len(states) >= len(ROLES) and all(state.get("Health", {}).get("Status") == "healthy" for state in states)


def nothing_is_left() -> None:
    filters = ["--filter", f"label=com.docker.compose.project={PROJECT}", "--quiet"]
    left = {
        "containers": docker("ps", "--all", *filters),
        "volumes": docker("volume", "ls", *filters),
        "networks": docker("network", "ls", *filters),
    }
    assert not any(left.values()), left


def status() -> dict[str, Any]:
    found: dict[str, Any] = json.loads(compose("run", "--rm", "--no-deps", "cli", "status", "--json", run_directory()))
    return found


def metrics() -> dict[str, Any]:
    """The last line of the learner's metrics."""
    found: dict[str, Any] = {"iteration": -1, "env_steps": 0, "episode_return_mean": None} | status()["metrics"]
    return found


def run_directory() -> str:
    return f"/runs/{os.environ.get('RUN', 'default')}"


def actors_seen() -> int:
    """The number of actors that Prometheus scrapes with success.

    Not `sum(up{job="actor"})`: a Prometheus that was stopped and started again answers for five minutes with the last
    value of addresses that nobody has any more.
    """
    port = os.environ["PROMETHEUS_PORT"]
    with urllib.request.urlopen(f"http://127.0.0.1:{port}/api/v1/targets?state=active", timeout=10) as answer:
        targets = json.load(answer)["data"]["activeTargets"]
    return sum(target["labels"]["job"] == "actor" and target["health"] == "up" for target in targets)


def until(what: str, holds: Callable[[], bool], within_s: float) -> None:
    deadline = time.monotonic() + within_s
    while True:
        try:
            if holds():
                return
            reason = "it is not so"
        except (OSError, subprocess.CalledProcessError) as error:
            reason = str(error)
        if time.monotonic() > deadline:
            raise AssertionError(f"{what}: not within {within_s:g} s: {reason}")
        time.sleep(2)


def containers(*services: str) -> list[str]:
    """Those that run, or have run."""
    project = ["--filter", f"label=com.docker.compose.project={PROJECT}"]
    found = [
        docker(
            "ps",
            "--all",
            "--quiet",
            *project,
            "--filter",
            f"label=com.docker.compose.service={service}",
            "--filter",
            "label=com.docker.compose.oneoff=False",
        ).split()
        for service in services
    ]
    return [name for names in found for name in names]


def inspect(name: str) -> dict[str, Any]:
    (found,) = json.loads(docker("inspect", name))
    return dict(found)


def compose(*arguments: str, checks: bool = True) -> str:
    return call([*COMPOSE, *arguments], checks=checks)


def docker(*arguments: str) -> str:
    return call(["docker", *arguments])


def call(command: list[str], *, checks: bool = True) -> str:
    done = subprocess.run(command, capture_output=True, text=True, check=False)
    if checks and done.returncode:
        print(done.stderr[-4000:], file=sys.stderr)
        done.check_returncode()
    return done.stdout


def say(text: str) -> None:
    print(time.strftime("%T"), text, flush=True)


if __name__ == "__main__":
    main()
