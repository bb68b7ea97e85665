"""Runs the commands of an overlay's pods: from nothing to training, and on after a restart. There is no cluster in
it."""

import json
import subprocess
import sys
import urllib.request
from pathlib import Path

import pytest
from tests.deploy.kubernetes_fleet import OVERLAYS, built, needs_kubectl
from tests.deploy.kubernetes_pods import Cluster, cluster
from tests.role_process import wait_for

SMALL = ("rollout_config.worker_config.num_envs=8", "rollout_config.worker_config.envs_per_process=8")

pytestmark = needs_kubectl


def iterations(pods: Cluster) -> list[int]:
    path = pods.of("learner")[0].folder / "runs" / "default" / "metrics.jsonl"
    lines = path.read_text().splitlines(keepends=True) if path.exists() else []
    return [json.loads(line)["iteration"] for line in lines if line.endswith("\n")]


@pytest.mark.soak
@pytest.mark.timeout(900)
@pytest.mark.parametrize("overlay", OVERLAYS)
def test_pods_that_share_no_disk_but_that_of_the_ranks_train_and_go_on(overlay: str, tmp_path: Path) -> None:
    with cluster(built(overlay), tmp_path, "cartpole", *SMALL) as pods:
        pods.start(*pods.pods)
        wait_for(lambda: all(pod.is_ready() for pod in pods.pods) and len(iterations(pods)) > 3)
        learners = pods.of("learner")
        for pod in learners:
            pod.ask_to_stop()
        for pod in learners:
            pod.wait()
        done = iterations(pods)[-1]
        pods.start(*learners)
        wait_for(lambda: all(pod.is_ready() for pod in learners) and iterations(pods)[-1] > done)
        for pod in learners:
            assert f"iteration {done}" in pod.log.read_text()
        others = [pod for pod in pods.pods if pod not in learners]
        for pod in others:
            pod.ask_to_stop()
        assert {pod.name: pod.wait() for pod in others} == dict.fromkeys((pod.name for pod in others), 0)


@pytest.mark.soak
@pytest.mark.timeout(900)
def test_finished_learner_stays_finished_and_status_in_its_pod_asks_the_others(tmp_path: Path) -> None:
    with cluster(built("local"), tmp_path, "cartpole", *SMALL, "stop.env_steps=1500") as pods:
        pods.start(*pods.pods)
        (learner,) = pods.of("learner")
        assert learner.wait() == 0
        result, done = learner.folder / "runs" / "default" / "result.json", iterations(pods)
        written = result.read_text()
        pods.start(learner)  # As Kubernetes does with whatever ends.
        wait_for(learner.is_ready)
        with urllib.request.urlopen(f"http://{learner.address}:{learner.metrics_port}/readyz") as answer:
            assert answer.read() == b"paused: the run is over: env_steps\n"
        command = [sys.executable, "-m", "minefleet", "status", "--json", str(learner.folder / "runs" / "default")]
        asked = subprocess.run(command, capture_output=True, text=True, check=True)
        states = {role["name"]: role["state"] for role in json.loads(asked.stdout)["roles"]}
        assert states == {"learner": "paused", "replay": "running", "parameters": "running"}
        learner.ask_to_stop()
        assert learner.wait() == 0
        assert (result.read_text(), iterations(pods)) == (written, done)
