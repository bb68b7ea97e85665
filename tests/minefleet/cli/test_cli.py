"""The command line as a process: what it answers, and that a mistake starts and changes nothing."""

import json
import os
import pty
import socket
import subprocess
import sys
import time
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest

from minefleet.config.load import load
from minefleet.core.schema import Leaf, Schema, zeros
from minefleet.rpc.weights.manifest import entries_of
from minefleet.rpc.weights.version_info import read_info
from minefleet.runs.checkpoint_files import Checkpoint, CheckpointState, write
from minefleet.runs.exported_version import export
from minefleet.runs.run_yaml import Run, read_run
from minefleet.v1 import weights_pb2

Done = subprocess.CompletedProcess[str]
Cli = Callable[..., Done]

NETWORK = """
import gymnasium
from gymnasium import spaces


class Network(gymnasium.Env):
    observation_space = spaces.Graph(spaces.Discrete(2), None)
    action_space = spaces.Discrete(2)


def make():
    return Network()
"""


@pytest.fixture
def cli(tmp_path: Path) -> Cli:
    def run_command(*arguments: str) -> Done:
        command = [sys.executable, "-m", "minefleet", *arguments]
        return subprocess.run(command, cwd=tmp_path, capture_output=True, text=True, check=False)

    return run_command


@pytest.fixture
def old_run(tmp_path: Path) -> Run:
    """A run that has stopped, with a checkpoint and a store."""
    schema = Schema(
        obs=Leaf(kind="box", shape=(4,), dtype="float32"),
        action=Leaf(kind="discrete", shape=(), dtype="int64", categories=(2,)),
    )
    run = Run(directory=tmp_path / "runs" / "old", config=load("cartpole"), schema=schema, architecture="abc")
    run.directory.mkdir(parents=True)
    run.write()
    state = CheckpointState(run_id="run-7", iteration=3)
    weights = {"w": np.ones(3, np.float32)}
    write(run.checkpoints, Checkpoint(state=state, policy=weights, optimizer={}, rng={}, run=""))
    run.replay.mkdir()
    (run.replay / "identity.json").write_text(json.dumps({"run_id": "run-7"}))
    return run


def files(directory: Path) -> dict[str, bytes]:
    """Everything below a directory."""
    return {str(path): path.read_bytes() for path in sorted(directory.rglob("*")) if path.is_file()}


def refused(done: Done, *parts: str) -> None:
    """Asserts exit code 2 and one message that holds all parts."""
    assert (done.returncode, done.stdout) == (2, "")
    assert done.stderr.startswith("minefleet: ") and done.stderr.count("\n") == 1
    assert all(part in done.stderr for part in parts), done.stderr


@pytest.mark.parametrize("closed", [[0], [1], [2], [0, 1, 2]], ids=str)
def test_cli_with_closed_standard_streams_writes_no_file_through_them(tmp_path: Path, closed: list[int]) -> None:
    redirections = " ".join(f"{number}<&-" if number == 0 else f"{number}>&-" for number in closed)
    train = "train cartpole --serial --run-dir run train_config.num_iterations=1"
    script = f"{sys.executable} -m minefleet {train} {redirections}"
    subprocess.run(["sh", "-c", script], cwd=tmp_path, capture_output=True, check=True)
    rows = (tmp_path / "run" / "metrics.jsonl").read_text().splitlines()
    assert [json.loads(row)["iteration"] for row in rows] == [1]


@pytest.mark.parametrize(
    ("how", "stderr"),
    [("", "2> /dev/full"), ("--serial", "2>&1 > result | true")],
    ids=["a full disk", "a reader that has gone"],
)
def test_cli_trains_to_its_end_though_stderr_takes_nothing(tmp_path: Path, how: str, stderr: str) -> None:
    command = f"{sys.executable} -m minefleet train cartpole {how} --run-dir run train_config.num_iterations=1"
    script = f"{{ {command}; echo $? > code; }} {stderr}"
    subprocess.run(["sh", "-c", script], cwd=tmp_path, capture_output=True, check=True)
    while not (tmp_path / "code").exists():
        time.sleep(0.05)
    assert (tmp_path / "code").read_text() == "0\n"
    rows = (tmp_path / "run" / "metrics.jsonl").read_text().splitlines()
    assert [json.loads(row)["iteration"] for row in rows] == [1]


def test_cli_in_a_locale_of_ascii_reads_configurations_as_utf8(tmp_path: Path) -> None:
    (tmp_path / "mine.yaml").write_text("env: {id: CartPole-v1, kwargs: {größe: 3}}\n", encoding="utf-8")
    command = [sys.executable, "-m", "minefleet", "config", "show", "mine.yaml"]
    variables = {**os.environ, "LC_ALL": "C", "PYTHONUTF8": "0", "PYTHONCOERCECLOCALE": "0"}
    done = subprocess.run(command, cwd=tmp_path, env=variables, capture_output=True, check=True)
    assert "größe: 3" in done.stdout.decode()


@pytest.mark.parametrize(
    ("arguments", "parts"),
    [
        (["cartpole", "train_config.discont=1"], ["train_config.discont", "command line", "train_config.discount"]),
        (["cartpole", "train_config.discount=high"], ["train_config.discount", "a number", "'high'"]),
        (["cartpole", "train_config.discount=2"], ["train_config.discount", "[0, 1]", "2.0"]),
        (["cartpol"], ["'cartpol' is no preset", "the nearest is cartpole"]),
        (["mine.yaml"], ["mine.yaml", "unknown key", "max_stalenes", "max_staleness"]),
        (["cartpole", "env.id=CartPole-v99"], ["env.id 'CartPole-v99'", "CartPole-v1"]),
        (["cartpole", "env.id=", "env.generator=network.py:make"], ["Graph", "Box"]),
        (["cartpole", "rollout_config.worker_config.device=cuda:99"], ["worker_config.device=cuda:99", "GPUs here"]),
        (["cartpole", "train_config.resume=nowhere"], ["nowhere does not exist"]),
        ([], ["give a CONFIG", "crafter"]),
        (["CartPol-v1"], ["env.id 'CartPol-v1'", "CartPole-v1"]),
        (["cartpole", f"seed={2**64}"], ["seed must be < 2**63"]),
        (["cartpole", "lr=3e-4"], ["there is no lr (command line): here it is train_config.learning_rate"]),
        (["cartpole", "--lr", "3e-4"], ["there is no option --lr: write train_config.learning_rate=3e-4"]),
        (["cartpole", "--num-steps=64"], ["write rollout_config.fragment_length=64"]),
        (["cartpole", "--seed", "3"], ["there is no option --seed: write seed=3"]),
        (["cartpole", "--gae-lambda", "0.9"], ["write train_config.gae_lambda=0.9"]),
        (["cartpole", "--train_config.discount", "0.9"], ["write train_config.discount=0.9"]),
        (["--track", "cartpole"], ["write logger_config.wandb=true"]),
        (["cartpole", "--batch_size", "64"], ["train_config.batch_size_per_gpu, in fragments"]),
        (["cartpole", "--num_workers", "4"], ["actors are rollout_config.num_rollout_workers"]),
        (["cartpole", "--ru", "x"], ["there is no option --ru: see --help"]),
    ],
)
def test_a_mistake_in_the_configuration_is_one_message_and_starts_nothing(
    cli: Cli, tmp_path: Path, arguments: list[str], parts: list[str]
) -> None:
    (tmp_path / "network.py").write_text(NETWORK)
    (tmp_path / "mine.yaml").write_text("rollout_config: {replay_buffer_config: {max_stalenes: 3}}\n")
    refused(cli("train", *arguments), *parts)
    assert not (tmp_path / "runs").exists()


def test_a_port_in_use_is_refused_before_anything_starts(cli: Cli, tmp_path: Path) -> None:
    with socket.create_server(("127.0.0.1", 0)) as taken:
        address = f"127.0.0.1:{taken.getsockname()[1]}"
        refused(cli("train", "cartpole", f"services.replay.address={address}"), "services.replay.address", address)
    assert not (tmp_path / "runs").exists()


def test_an_unwritable_run_directory_is_refused(cli: Cli, tmp_path: Path) -> None:
    (tmp_path / "file").write_text("mine")
    done = cli("train", "cartpole", "--run-dir", "file/run")
    refused(done, "cannot write the run directory", f"{tmp_path}/file is a file")
    assert (tmp_path / "file").read_text() == "mine"


def test_a_directory_that_holds_a_run_is_not_overwritten(cli: Cli, old_run: Run) -> None:
    before = files(old_run.directory)
    refused(cli("train", "cartpole", "--run-dir", "runs/old"), "already holds a run", "--resume")
    assert files(old_run.directory) == before


def test_resume_auto_goes_on_with_the_run_that_is_there_and_starts_one_where_there_is_none(
    cli: Cli, old_run: Run
) -> None:
    auto = ("train", "cartpole", "train_config.resume=auto", "--run-dir")
    refused(cli(*auto, "runs/old"), "runs/old was trained on")  # So it is gone on with: it is found not to fit.
    refused(cli(*auto, "file/run", "policy.activation=none"), "policy.activation")
    path = old_run.directory / "checkpoints" / "00000003" / "policy.safetensors"
    path.write_bytes(path.read_bytes()[:-1])
    refused(cli(*auto, "runs/old"), "is damaged")


def test_a_broken_checkpoint_is_not_resumed(cli: Cli, old_run: Run) -> None:
    weights = old_run.checkpoints / "latest" / "policy.safetensors"
    weights.write_bytes(weights.read_bytes()[:-1])
    before = files(old_run.directory)
    refused(cli("train", "--resume", "runs/old"), "is damaged", "policy.safetensors")
    assert files(old_run.directory) == before


def test_an_exported_version_is_no_run_and_starts_one_only_of_its_architecture(
    cli: Cli, old_run: Run, tmp_path: Path
) -> None:
    weights = {"w": np.ones(3, np.float32)}
    info = read_info(weights_pb2.VersionInfo(version=9, run_id="run-7"))
    export(tmp_path / "out", old_run, info, entries_of({"w": ("float32", (3,))}), lambda entry: weights[entry.name])
    start = ("train", "cartpole", "--run-dir", "new", "train_config.resume=out")
    refused(cli(*start), "exported version and has no optimizer", "add train_config.resume_optimizer=false")
    refused(cli(*start, "train_config.resume_optimizer=false"), "was trained with another architecture")
    refused(cli("train", "--resume", "out"), "there is no run in out")
    model = tmp_path / "out/model.safetensors"
    model.write_bytes(model.read_bytes()[:-1])
    refused(cli(*start), "the exported version", "is damaged")
    refused(cli("eval", "out"), "the exported version", "is damaged")
    assert not (tmp_path / "new").exists()


def test_a_store_of_another_run_is_not_resumed(cli: Cli, old_run: Run) -> None:
    (old_run.replay / "identity.json").write_text(json.dumps({"run_id": "run-8"}))
    before = files(old_run.directory)
    refused(cli("train", "--resume", "runs/old"), "run-7", "run-8")
    assert files(old_run.directory) == before


def test_a_run_that_does_not_exist_is_not_resumed(cli: Cli) -> None:
    refused(cli("train", "--resume", "nowhere"), "there is no run in nowhere")
    refused(cli("train", "--resume"), "there is no run in", "runs")


def test_a_role_with_another_configuration_does_not_join(cli: Cli, old_run: Run) -> None:
    done = cli("serve", "replay", "cartpole", "train_config.discount=0.5", "--run-dir", str(old_run.directory))
    refused(done, "train_config.discount is 0.98 there and 0.5 here")


def test_a_role_waits_for_the_run_that_somebody_else_prepares(tmp_path: Path) -> None:
    with subprocess.Popen(
        [sys.executable, "-m", "minefleet", "serve", "replay", "--run-dir", "run"],
        cwd=tmp_path,
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
    ) as role:
        try:
            assert role.stdout is not None
            assert "waiting for a run in run" in role.stdout.readline()
            place = ["services.replay=[{address: 127.0.0.1:0}]"]
            schema = Schema(obs={}, action={})
            (tmp_path / "run").mkdir()
            Run(directory=tmp_path / "run", config=load("cartpole", place), schema=schema, architecture="").write()
            assert role.stderr is not None
            assert any("replay serves on" in line for line in role.stderr)
            assert b"OMP_NUM_THREADS=1" in Path(f"/proc/{role.pid}/environ").read_bytes().split(b"\0")
        finally:
            role.kill()


def test_serve_and_prepare_without_a_configuration_refuse_overrides_or_ask_for_one(cli: Cli) -> None:
    refused(cli("serve", "replay", "seed=3", "--run-dir", "run"), "without a CONFIG", "drop seed=3")
    refused(cli("serve", "replay"), "give a CONFIG")
    refused(cli("prepare", "--run-dir", "run"), "give a CONFIG")


@pytest.mark.parametrize("settings", [["CartPole-v1"], ["env.id=CartPole-v1"]])
def test_a_gymnasium_id_is_a_configuration_of_every_command(cli: Cli, tmp_path: Path, settings: list[str]) -> None:
    done = cli("prepare", *settings)
    assert (done.returncode, done.stdout) == (0, f"{tmp_path}/runs/CartPole-v1\n"), done.stderr
    config = read_run(tmp_path / "runs/CartPole-v1").config
    assert (config.env.id, config.policy.normalize_obs) == ("CartPole-v1", False)
    assert "reproduce" not in cli("env", *settings, "--steps", "5").stdout
    assert cli("doctor", *settings).stdout
    waiting = cli("serve", "replay", *settings, "seed=5", "--run-dir", "runs/CartPole-v1")
    refused(waiting, "another configuration: seed is 0 there and 5 here")


def test_cli_takes_paths_with_an_equals_sign_for_paths(cli: Cli, old_run: Run, tmp_path: Path) -> None:
    folder = tmp_path / "lr=1"
    folder.mkdir()
    (folder / "my.yaml").write_text("env: {id: CartPole-v1}\nseed: 7\n")
    for config in ("lr=1/my.yaml", "./lr=1/my.yaml", str(folder / "my.yaml")):
        assert "seed: 8" in cli("config", "show", config, "seed=8").stdout
        assert "seed: 7" in cli("config", "show", config).stdout
    old_run.directory.rename(tmp_path / "runs" / "lr=0.1")
    reached = "train_config.num_iterations=3"
    assert cli("train", "--resume", "runs/lr=0.1", reached).returncode == 0
    refused(cli("train", "--resume", "runs/lr=0.2"), "there is no run in runs/lr=0.2")
    refused(cli("env", "runs/lr=0.1", "policy.gru=2"), "policy.gru")
    assert cli("train", "--resume", reached, "seed=3").stderr.startswith(
        "minefleet: changed: seed=3 (was 0), train_config.num_iterations=3 (was "
    )


def test_seeds_beyond_64_bits_are_refused_by_options_too(cli: Cli, old_run: Run) -> None:
    for command in (("env", "cartpole"), ("eval", "runs/old")):
        for seed in (str(2**63), "-1"):
            done = cli(*command, f"--seed={seed}")
            assert done.returncode == 2 and "must be in [0, 2**63)" in done.stderr


@pytest.mark.parametrize("options", [(), ("--json",)])
def test_a_terminal_is_shown_the_end_of_a_run_as_text_unless_json_is_asked_for(
    old_run: Run, tmp_path: Path, options: tuple[str, ...]
) -> None:
    reached = ["train", "--resume", "runs/old", "train_config.num_iterations=3", *options]
    ours, theirs = pty.openpty()
    with os.fdopen(ours, "rb") as terminal:
        command = [sys.executable, "-m", "minefleet", *reached]
        subprocess.run(
            command, cwd=tmp_path, stdin=subprocess.DEVNULL, stdout=theirs, stderr=subprocess.PIPE, check=True
        )
        os.close(theirs)
        shown = terminal.read1().decode()
    if options:
        assert json.loads(shown)["stopped_by"] == "num_iterations"
    else:
        assert "checkpoint    runs/old/checkpoints/00000003" in shown
        assert "train --resume runs/old train_config.num_iterations=8000" in shown


def test_a_run_is_prepared_for_roles_that_start_by_themselves(cli: Cli, tmp_path: Path) -> None:
    done = cli("prepare", "cartpole", "--run-dir", "run")
    assert (done.returncode, done.stdout) == (0, f"{tmp_path / 'run'}\n"), done.stderr
    assert np.shape(zeros(read_run(tmp_path / "run").schema.obs)) == (4,)


def test_eval_of_a_directory_that_is_no_checkpoint_is_refused(cli: Cli) -> None:
    refused(cli("eval", "nowhere"), "nowhere does not exist")


def test_cli_help_and_version_are_printed(cli: Cli) -> None:
    assert "train" in cli("--help").stdout
    assert "--resume" in cli("train", "--help").stdout
    assert cli("--version").stdout.startswith("minefleet ")


def test_an_unknown_command_is_answered_with_those_there_are(cli: Cli) -> None:
    done = cli("trian")
    assert done.returncode == 2
    assert "train" in done.stderr and "Traceback" not in done.stderr


def test_options_and_overrides_may_come_in_any_order(cli: Cli) -> None:
    shown = cli("config", "show", "seed=3", "cartpole", "train_config.discount=0.5").stdout
    assert "seed: 3" in shown and "discount: 0.5" in shown


def test_a_configuration_is_resolved_with_its_spaces(cli: Cli) -> None:
    resolved = cli("config", "resolve", "cartpole").stdout
    assert "schema:" in resolved and "architecture:" in resolved and "float32" in resolved


def test_the_status_of_a_run_whose_roles_are_gone_says_so(cli: Cli, old_run: Run) -> None:
    (old_run.directory / "roles").mkdir()
    card = {"name": "replay", "role": "ROLE_REPLAY", "pid": 1, "address": "127.0.0.1:9", "metrics_address": ""}
    (old_run.directory / "roles" / "replay.json").write_text(json.dumps(card))
    status = json.loads(cli("status", "--json").stdout)
    assert status["run_dir"] == "runs/old"
    assert [(role["name"], role["state"]) for role in status["roles"]] == [("replay", "unreachable")]
    assert "unreachable" in cli("status", "runs/old").stdout


def test_status_without_a_run_dir_shows_the_newest_run(cli: Cli, old_run: Run, tmp_path: Path) -> None:
    newer = replace(old_run, directory=tmp_path / "runs" / "newer")
    newer.directory.mkdir()
    newer.write()
    assert json.loads(cli("status", "--json").stdout)["run_dir"] == "runs/newer"


def test_a_trainer_that_is_none_ends_the_command_before_a_role_starts(cli: Cli, tmp_path: Path) -> None:
    done = cli("train", "cartpole", "trainer_name=pathlib:Path", "--run-dir", "run")
    assert done.returncode == 2
    assert "trainer_name=pathlib:Path is the class Path" in done.stderr
    assert not (tmp_path / "run").exists()


def test_a_tracker_that_is_not_installed_ends_the_command_before_a_role_starts(cli: Cli, tmp_path: Path) -> None:
    done = cli("train", "cartpole", "logger_config.trackers=[comet]", "--run-dir", "run")
    refused(done, "logger_config.trackers must name some of", "got 'comet'")
    assert not (tmp_path / "run").exists()
