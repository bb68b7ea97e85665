"""MineStudio's run configurations as they are published, and the one in its documentation, as CONFIG."""

import os
import pickle
import subprocess
from collections.abc import Callable
from pathlib import Path

import pytest
import torch
from tests.conftest import COMMAND, Fleet
from tests.engine.prepared import Prepared
from tests.interpreters import minestudio_python
from tests.minefleet.policies.vpt.published import model_file, net_kwargs, their_weights

from minefleet.config import FleetConfig
from minefleet.config.load import load
from minefleet.policies.vpt import VPTPolicy
from minefleet.policies.vpt.architecture import from_kwargs

EXAMPLE = Path(__file__).parents[1] / "examples" / "kill_cow.py"
NFS, SCRATCH = "/nfs-shared/jarvisbase/pretrained", "/scratch/hekaichen"
SMALL = (
    *("rollout_config.num_rollout_workers=1", "rollout_config.worker_config.num_envs=2"),
    *("rollout_config.fragment_length=64", "train_config.context_length=8", "train_config.num_workers=1"),
    *("train_config.batches_per_iteration=4", "train_config.gradient_accumulation=2"),
    "rollout_config.replay_buffer_config.database_config.num_shards=2",
)
"""The part of it that two cores can do."""
STEPS = 4 * 64
"""Trained on in an iteration of that."""
FILMED = 20
"""Iterations within which two episodes of 600 steps end, the second of them filmed from its first step on: what two
environments play is trained on almost twice."""
QUICK = """
from omegaconf import OmegaConf
from minestudio.online.rollout.start_manager import start_rolloutmanager
from minestudio.online.trainer.start_trainer import start_trainer

def policy_generator():
    from minestudio.models.openai_vpt.body import load_openai_policy
    return load_openai_policy('pretrained/foundation-model-2x.model', 'pretrained/bc-from-early-game-2x.weights')

def env_generator():
    from minestudio.simulator import MinecraftSim
    return MinecraftSim(obs_size=(128, 128), timestep_limit=1000)

online_dict = {"trainer_name": "PPOTrainer", "train_config": {"anneal_lr_linearly": False, "discount": 0.999}}
online_cfg = OmegaConf.create(online_dict)
start_rolloutmanager(policy_generator, env_generator, online_cfg)
start_trainer(policy_generator, env_generator, online_cfg)
"""
"""The shape of MineStudio's quick start: one file that also starts."""


@pytest.fixture
def published(tmp_path: Path) -> Callable[[str], Path]:
    """Copies a configuration out of MineStudio's package, byte for byte."""
    find = "import importlib.util; print(importlib.util.find_spec('minestudio').submodule_search_locations[0])"
    done = subprocess.run([minestudio_python(), "-c", find], capture_output=True, text=True, check=True)
    folder = Path(done.stdout.strip()) / "online" / "run" / "config"

    def copied(name: str) -> Path:
        path = tmp_path / f"{name}.py"
        path.write_bytes((folder / path.name).read_bytes())
        return path

    return copied


@pytest.fixture
def pretrained(tmp_path: Path) -> Path:
    """Files with the published names and formats, of a tiny network."""
    folder, kwargs = tmp_path / "pretrained", net_kwargs(image=128)
    folder.mkdir()
    (folder / "foundation-model-2x.model").write_bytes(pickle.dumps(model_file(kwargs)))
    weights = their_weights(VPTPolicy(from_kwargs(kwargs, {"temperature": 2.0})))
    for name in ("foundation-model-2x", "bc-from-early-game-2x"):
        torch.save(weights, folder / f"{name}.weights")
    return folder


@pytest.fixture
def playing(minestudio_engine: Prepared, monkeypatch: pytest.MonkeyPatch) -> Prepared:
    """MineStudio, whose engine is played, as the processes of a fleet find it."""
    for name, value in minestudio_engine.variables.items():
        monkeypatch.setenv(name, value)
    return minestudio_engine


def settings(config: FleetConfig) -> tuple[object, ...]:
    train = config.train_config
    return train.kl_divergence_coef_rho, train.use_amp, train.prefetch_batches, train.enable_ref_update


@pytest.mark.parametrize(("name", "follows"), [("gate", True), ("gate_kl", False)])
def test_published_configurations_load_byte_for_byte(
    published: Callable[[str], Path], name: str, follows: bool
) -> None:
    path = published(name)
    config = load(str(path))
    assert settings(config) == (0.2, False, 2, follows)
    assert config.train_config.save_path == f"{SCRATCH}/workspace/MineStudio/minestudio/online/run/output/{name}"
    assert config.policy.generator == f"{path}:policy_generator"


def test_a_quick_start_in_one_file_loads_and_starts_nothing(tmp_path: Path) -> None:
    path = tmp_path / "quick.py"
    path.write_text(QUICK)
    config = load(str(path))
    assert (config.train_config.discount, config.env.generator) == (0.999, f"{path}:env_generator")
    assert sorted(entry.name for entry in tmp_path.iterdir() if entry.name != "__pycache__") == ["quick.py"]


def test_minestudio_example_is_the_published_task_with_every_setting() -> None:
    config = load(str(EXAMPLE))
    assert config.rollout_config.fragment_length == 256
    assert settings(config)[0] == 0.2
    assert config.logger_config.name == "bow_cow"


@pytest.mark.soak
@pytest.mark.timeout(900)
@pytest.mark.parametrize("name", ["gate", "gate_kl"])
def test_a_published_configuration_trains_from_files_at_other_places_and_resumes(
    published: Callable[[str], Path],
    pretrained: Path,
    playing: Prepared,
    train: Callable[..., Fleet],
    tmp_path: Path,
    name: str,
) -> None:
    maps = ("--map-path", f"{NFS}={pretrained}", "--map-path", f"{SCRATCH}={tmp_path / 'scratch'}")
    python = f"env.python={playing.python}"
    fleet = train(str(published(name)), python, *maps, *SMALL, "train_config.num_iterations=2")
    assert fleet.finish()["trained_steps"] == 2 * STEPS
    kept = tmp_path / "scratch" / "workspace" / "MineStudio" / "minestudio" / "online" / "run" / "output" / name
    assert (kept / "latest").exists()
    resumed = train("--resume", str(fleet.directory), "train_config.num_iterations=3")
    assert resumed.finish()["trained_steps"] > 2 * STEPS  # What was under way at the end are shorter fragments.
    assert [row["iteration"] for row in resumed.rows()] == [1, 2, 3]
    assert playing.engines() == []


@pytest.mark.soak
@pytest.mark.timeout(900)
def test_minestudio_example_trains_films_saves_and_resumes(
    pretrained: Path, playing: Prepared, train: Callable[..., Fleet]
) -> None:
    given = (str(EXAMPLE), f"env.python={playing.python}", "--map-path", f"pretrained={pretrained}", *SMALL)
    fleet = train(*given, f"train_config.num_iterations={FILMED}")
    assert fleet.finish()["trained_steps"] == FILMED * STEPS
    output = fleet.directory / "output"
    assert (output / "latest").exists()
    assert list((output / "videos").rglob("*.mp4"))
    resumed = train("--resume", str(fleet.directory), f"train_config.num_iterations={FILMED + 1}")
    assert resumed.finish()["trained_steps"] > FILMED * STEPS
    assert [row["iteration"] for row in resumed.rows()] == [*range(1, FILMED + 2)]
    assert playing.engines() == []


def test_minestudio_config_without_its_engine_is_refused_in_one_line(
    published: Callable[[str], Path], tmp_path: Path
) -> None:
    path, python = str(published("gate_kl")), f"env.python={minestudio_python()}"
    environment = os.environ | {"MINESTUDIO_DIR": str(tmp_path / "nowhere")}
    command = [*COMMAND, "config", "resolve", path, python]
    done = subprocess.run(command, env=environment, capture_output=True, text=True, check=False)
    assert done.returncode == 2
    assert "MineStudio's engine is missing: there is no" in done.stderr
    assert len(done.stderr.splitlines()) == 1
