"""The pods of an overlay as processes: each with its own address on the loopback interface, and its own folders.

What a pod runs is what the overlay says, in terms of this machine: addresses in place of names and 0.0.0.0, free ports,
folders, and the programs of this interpreter.
"""

import os
import re
import shlex
import shutil
import signal
import subprocess
import sys
import urllib.error
import urllib.request
from collections.abc import Iterator, Sequence
from contextlib import contextmanager, suppress
from dataclasses import dataclass, field
from pathlib import Path

import psutil
from tests.deploy.kubernetes_fleet import HOST, ROLES, Fleet, filled, mounts

from minefleet.launch.ports import free_port
from minefleet.rpc import certificates

PROGRAMS = {"minefleet": ["-m", "minefleet"], "torchrun": ["-m", "torch.distributed.run"]}
METRICS_PORT = "9100"
PORTS = ("7000", METRICS_PORT, "29500")
RUNS = "runs"
TIMEOUT_S = 300.0


@dataclass(kw_only=True)
class Process:
    """A pod."""

    name: str
    role: str
    index: int
    folder: Path
    address: str
    metrics_port: str
    running: "subprocess.Popen[bytes] | None" = field(default=None, repr=False)

    @property
    def log(self) -> Path:
        """The output of its containers."""
        return self.folder / "log"

    def is_ready(self) -> bool:
        """Whether its readiness probe is content; fails when its container has ended."""
        assert self.running is not None
        assert self.running.poll() is None, self.log.read_text()
        try:
            with urllib.request.urlopen(
                f"http://{self.address}:{self.metrics_port}/readyz", timeout=TIMEOUT_S
            ) as answer:
                return bool(answer.status == 200)
        except (urllib.error.HTTPError, OSError):
            return False

    def ask_to_stop(self) -> None:
        """As kubelet does."""
        assert self.running is not None
        self.running.send_signal(signal.SIGTERM)

    def wait(self) -> int:
        """Waits for the end of its container; returns the exit code."""
        assert self.running is not None
        return self.running.wait(TIMEOUT_S)


class Cluster:
    """The pods of a fleet, one actor and at most one host among them.

    `config` stands for the CONFIG that the overlay names.
    """

    def __init__(self, fleet: Fleet, place: Path, config: str, overrides: Sequence[str]) -> None:
        self._fleet = fleet
        self._place = place
        self._config = config
        self._overrides = overrides
        self._ports = {port: str(free_port("0.0.0.0")) for port in PORTS}
        self._started: list[subprocess.Popen[bytes]] = []
        certificates.init(place / "certs")
        names = [(role, index) for role in ROLES for index in range(self._replicas(role))]
        names += [(HOST, 0)] * fleet.has_hosts
        # A network of its own for every process that makes a cluster.
        network = f"127.{os.getpid() // 250 % 250 + 1}.{os.getpid() % 250 + 1}"
        self.pods = [
            Process(
                name=f"{role}-{index}",
                role=role,
                index=index,
                folder=place / f"{role}-{index}",
                address=f"{network}.{number + 1}",
                metrics_port=self._ports[METRICS_PORT],
            )
            for number, (role, index) in enumerate(names)
        ]

    def of(self, role: str) -> list[Process]:
        """The pods of a role."""
        return [pod for pod in self.pods if pod.role == role]

    def prepare(self) -> None:
        """Runs every pod's first container to its end. What it finds out is tried once: the others find it done."""
        overrides = [*self._fleet.generated("overrides")["overrides"].splitlines(), *self._overrides]
        for pod in self.pods:
            pod.folder.mkdir()
            shutil.copytree(self._place / "certs" / pod.role, pod.folder / "certs" / pod.role)
            if pod.role == HOST:
                (pod.folder / "overrides").write_text("\n".join(overrides) + "\n")
                continue
            if pod is not self.pods[0]:
                shutil.copytree(self.pods[0].folder / RUNS, pod.folder / RUNS)
            (pod.folder / "overrides").write_text("\n".join(self._here(each, pod) for each in overrides) + "\n")
            container = self._fleet.preparation(pod.role)
            assert container["args"][0] == "minefleet"
            xargs = [self._here(each, pod) for each in container["command"]]
            arguments = [self._here(each, pod) for each in container["args"][1:]]
            process = self._start([*xargs, sys.executable, *PROGRAMS["minefleet"], *arguments], pod)
            assert process.wait(TIMEOUT_S) == 0, pod.log.read_text()

    def start(self, *pods: Process) -> None:
        """Starts the containers of the roles."""
        for pod in pods:
            container = self._fleet.container(pod.role)
            arguments = [self._here(each, pod) for each in container["args"]]
            if pod.role == HOST:
                (script,) = arguments
                program = shlex.join([sys.executable, *PROGRAMS["minefleet"], HOST])
                pod.running = self._start([*container["command"], script.replace("minefleet host", program)], pod)
                continue
            pod.running = self._start([sys.executable, *PROGRAMS[container["command"][0]], *arguments], pod)

    def close(self) -> None:
        """Ends what is left, ranks that torchrun has started included."""
        for process in self._started:
            if process.poll() is None:
                family = psutil.Process(process.pid)
                for each in (*family.children(recursive=True), family):
                    with suppress(psutil.NoSuchProcess):
                        each.kill()
                process.wait(TIMEOUT_S)

    def _replicas(self, role: str) -> int:
        return 1 if role == "actor" else int(self._fleet.workload(role)["spec"]["replicas"])

    def _start(self, command: Sequence[str], pod: Process) -> "subprocess.Popen[bytes]":
        values = {each["name"]: each["value"] for each in self._fleet.container(pod.role)["env"] if "value" in each}
        values |= self._fleet.generated("run") | {"CONFIG": self._config}
        with pod.log.open("ab") as log:
            process = subprocess.Popen(
                command, stdin=subprocess.DEVNULL, stdout=log, stderr=log, env=os.environ | values, cwd=pod.folder
            )
        self._started.append(process)
        return process

    def _here(self, text: str, pod: Process) -> str:
        """The command and the environment of a pod's containers, in terms of this machine."""
        run = self._fleet.generated("run") | {"CONFIG": self._config, "POD_INDEX": str(pod.index)}
        text = filled(text, run)
        for other in self.pods:
            text = text.replace(f"{other.name}.{other.role}", other.address)
        for role in ROLES:
            text = text.replace(f"address={role}:", f"address={self.of(role)[0].address}:")
            text = text.replace(f"--actor {role}:", f"--actor {self.of(role)[0].address}:")
            text = text.replace(f"address: {role}:", f"address: {self.of(role)[0].address}:")
        text = text.replace("0.0.0.0", pod.address)
        for port, free in self._ports.items():
            text = re.sub(rf"(?<=[:=]){port}\b", free, text)
        for place, folder in self._folders(pod).items():
            text = text.replace(place, str(folder))
        return text

    def _folders(self, pod: Process) -> dict[str, Path]:
        """This machine's folders for a pod's mounts; the longest paths first."""
        own = {place: pod.folder / name for place, name in mounts(self._fleet.container(pod.role)) if name == RUNS}
        return {"/runs/shared": self._place / "shared", "/certs": pod.folder / "certs", "/config": pod.folder, **own}


@contextmanager
def cluster(fleet: Fleet, place: Path, config: str, *overrides: str) -> Iterator[Cluster]:
    """A cluster, prepared; ends what is left of it."""
    made = Cluster(fleet, place, config, overrides)
    try:
        made.prepare()
        yield made
    finally:
        made.close()
