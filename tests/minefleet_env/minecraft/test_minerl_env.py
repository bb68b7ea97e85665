"""The real MineRL 1.0, in its own interpreter, over the stand-in engine."""

import json
import subprocess
import tempfile
from collections.abc import Callable, Iterator
from contextlib import closing
from pathlib import Path
from typing import Any

import numpy as np
import psutil
import pytest
from tests.conftest import Fleet
from tests.engine.prepare_minerl import prepare
from tests.engine.prepared import Prepared
from tests.interpreters import minerl_python

from minefleet.config import EnvConfig, WorkerConfig
from minefleet.config.load import load
from minefleet.core.errors import ConfigError, EnvFailedError
from minefleet.core.schema import Schema
from minefleet.launch.env_policy_check import describe_environment
from minefleet_actor.pool import EnvPool, Kind, Ready
from minefleet_env import interpreter_command
from minefleet_env.minecraft.actions import NULL_CAMERA

GENERATOR = "minefleet_env.minecraft.minerl_env:make"
EXAMPLE = Path(__file__).parents[3] / "examples" / "minerl_treechop.py"
CLIENTS = str(Path(__file__).parents[3] / "clients")
CAVE = {"id": "MineRLBasaltFindCave-v0"}
SURVIVAL = {"id": "MineRLHumanSurvival-v0"}
DIG = {"event": "mine_block", "objects": ["grass_block"], "reward": 2.0}
LOOK_DOWN = {"buttons": 1, "camera": 115}
ATTACK = {"buttons": 4, "camera": NULL_CAMERA}
NOTHING = {"buttons": 0, "camera": NULL_CAMERA}
AXE = [{"type": "iron_axe", "quantity": 1}]
PRELUDE = f"""
import json, logging, sys, warnings
warnings.filterwarnings("ignore")
logging.disable(logging.CRITICAL)
sys.path.insert(0, {CLIENTS!r})
from minefleet_env.errors import RefusedError
from minefleet_env.minecraft.minerl_env import make
"""


@pytest.fixture(scope="module")
def prepared(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Prepared]:
    """MineRL over the stand-in engine."""
    installation = prepare(minerl_python(), tmp_path_factory.mktemp("minerl"))
    yield installation
    installation.end()


@pytest.fixture(scope="module")
def schema(prepared: Prepared) -> Schema:
    """That of every environment with VPT's actions."""
    with pytest.MonkeyPatch.context() as patch:
        for name, value in {**prepared.variables, "DISPLAY": ":0"}.items():
            patch.setenv(name, value)
        return Schema.from_dict(described(prepared.python, **CAVE)["schema"])


@pytest.fixture(autouse=True)
def variables(prepared: Prepared, monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    """Those of the package, and a display; afterwards no process is left."""
    for name, value in {**prepared.variables, "DISPLAY": ":0"}.items():
        monkeypatch.setenv(name, value)
    yield
    assert not psutil.wait_procs(prepared.processes(), timeout=10)[1]


def described(python: str, **kwargs: Any) -> dict[str, Any]:
    keys = ["env.id=", f"env.python={python}", f"env.generator={GENERATOR}"]
    keys += [f"env.kwargs.{key}={json.dumps(value)}" for key, value in kwargs.items()]
    return describe_environment(load("cartpole", keys))


def run(python: str, code: str) -> Any:
    """Runs code in MineRL's interpreter; returns what it prints last, JSON."""
    command, variables = [python, "-c", PRELUDE + code], interpreter_command.environment(python)
    with tempfile.TemporaryDirectory() as folder:  # MineRL's own watchers leave files in the current one.
        done = subprocess.run(command, env=variables, cwd=folder, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr
    return json.loads(done.stdout.splitlines()[-1])


def opened(prepared: Prepared, schema: Schema, kwargs: dict[str, Any]) -> closing[EnvPool]:
    config = EnvConfig(generator=GENERATOR, python=prepared.python, kwargs=kwargs)
    pool = EnvPool(config, schema, WorkerConfig(num_envs=1), seed=5, actor_index=0)
    pool.start()
    return closing(pool)


def done(pool: EnvPool) -> Ready:
    """Waits until every slot has its say."""
    ready = pool.wait(60.0)
    assert len(ready.slots) == pool.num_slots
    return ready


def reset(pool: EnvPool) -> Ready:
    pool.reset(np.arange(pool.num_slots))
    return done(pool)


def step(pool: EnvPool, action: dict[str, int]) -> Ready:
    pool.step(np.arange(pool.num_slots), {key: np.full(pool.num_slots, value) for key, value in action.items()})
    return done(pool)


def test_minerl_env_shows_an_image_and_takes_the_actions_of_vpt(schema: Schema) -> None:
    spaces = schema.to_dict()
    image = spaces["obs"]["image"]
    assert (list(spaces["obs"]), image["shape"], image["dtype"]) == (["image"], [128, 128, 3], "uint8")
    categories = {path: leaf["categories"] for path, leaf in spaces["action"].items()}
    assert categories == {"buttons": [8641], "camera": [121]}


def test_frames_and_actions_are_those_of_a_bare_environment_in_the_same_world(prepared: Prepared) -> None:
    code = """
import cv2, gym, minerl, numpy as np
random = np.random.RandomState(0)
chosen = [{"buttons": random.randint(8641), "camera": random.randint(121)} for _ in range(40)]
bare, ours = gym.make("MineRLBasaltFindCave-v0"), make("MineRLBasaltFindCave-v0")
from minefleet_env import interpreter_command
from minefleet_env.minecraft.actions import to_engine
shown = []
bare.seed(7)
pov, (obs, _) = bare.reset()["pov"], ours.reset(seed=7)
for action in chosen:
    shown.append(bool((cv2.resize(pov, (128, 128), interpolation=cv2.INTER_LINEAR) == obs["image"]).all()))
    before = dict(action)
    pov = bare.step({**bare.action_space.noop(), **to_engine(action)})[0]["pov"]
    obs = ours.step(action)[0]
    assert action == before and ours.render().shape == (360, 640, 3)
ours.close(); bare.close()
print(json.dumps([shown, len(np.unique(pov))]))
"""
    shown, colours = run(prepared.python, code)
    assert shown == [True] * 40
    assert colours > 10


def test_minerl_env_pays_and_counts_mined_blocks_and_truncates_at_its_time_limit(
    prepared: Prepared, schema: Schema
) -> None:
    rule = DIG | {"max_reward_times": 2, "identity": "dig"}
    with opened(prepared, schema, SURVIVAL | {"rewards": [rule], "inventory": AXE, "time_limit": 40}) as pool:
        reset(pool)
        rewards = [float(step(pool, LOOK_DOWN if number < 4 else ATTACK).reward[0]) for number in range(39)]
        assert (sum(rewards), max(rewards)) == (4.0, 2.0)
        ready = step(pool, NOTHING)
        assert (ready.truncated.tolist(), ready.terminated.tolist()) == ([True], [False])
        assert ready.endings[0].metrics == {"dig": 2.0}


def test_a_death_at_the_last_step_of_a_time_limit_is_a_death(prepared: Prepared) -> None:
    code = """
env = make("MineRLHumanSurvival-v0", time_limit=2)
env.reset(seed=3)
noop = {"buttons": 0, "camera": 60}
env.step(noop)
inner = env._env.step
env._env.step = lambda action: (lambda obs, reward, done, info: (obs, reward, True, info))(*inner(action))
print(json.dumps(env.step(noop)[2:4]))
env.close()
"""
    assert run(prepared.python, code) == [True, False]


def test_every_environment_that_minerl_registers_is_played(prepared: Prepared) -> None:
    code = """
import gym, minerl
names = [name for name, spec in gym.envs.registry.env_specs.items() if "env_spec" in spec.kwargs and "Fake" not in name]
played = []
for name in names:
    env = make(name)
    for _ in range(2):
        env.reset(seed=3)
        ends = [env.step({"buttons": 0, "camera": 60})[2:4] for _ in range(3)]
        played.append(ends == [(False, False)] * 3)
    env.close()
print(json.dumps([len(names) > 5, all(played), "MineRLObtainDiamondShovel-v0" in names]))
"""
    assert run(prepared.python, code) == [True, True, True]


def test_minerl_env_counts_the_steps_of_each_episode_anew(prepared: Prepared) -> None:
    code = """
import gym, minerl
gym.envs.registry.env_specs["MineRLObtainDiamondShovel-v0"].kwargs["env_spec"].max_episode_steps = 4
env = make("MineRLObtainDiamondShovel-v0")
lengths = []
for _ in range(3):
    env.reset(seed=3)
    ends = [env.step({"buttons": 0, "camera": 60})[2:4] for _ in range(4)]
    lengths.append(ends == [(False, False)] * 3 + [(False, True)])
env.close()
print(json.dumps(lengths))
"""
    assert run(prepared.python, code) == [True, True, True]


def test_minerl_env_episode_follows_from_its_seed(prepared: Prepared) -> None:
    code = """
env = make("MineRLBasaltFindCave-v0")
first = [env.reset(seed=seed)[0]["image"].tobytes() for seed in (3, 4, 3)]
env.close()
print(json.dumps([first[0] == first[2], first[0] == first[1]]))
"""
    assert run(prepared.python, code) == [True, False]


def test_minerl_env_sends_and_shows_only_what_was_asked_for_within_its_space(prepared: Prepared) -> None:
    code = """
env = make("MineRLHumanSurvival-v0", observables=["life_stats", "use_item"])
obs, _ = env.reset()
mission = env._env.unwrapped.task.to_xml()
env.close()
from minefleet_env import shared_slot_arrays
from minefleet_env.space_conversion import schema_of, writer
schema = schema_of(env)
rows = {path: array[0, ...] for path, array in shared_slot_arrays.private(schema, 1).obs.items()}
writer(env.observation_space, schema["obs"], rows)(obs)
sent = [word in mission for word in ("FullInventory", "FullStats", "EquippedItem")]
print(json.dumps([sorted(obs), sent, float(rows["life_stats/food"])]))
"""
    assert run(prepared.python, code) == [["image", "life_stats", "use_item"], [False, True, False], 20.0]


def test_mine_rls_own_actions_are_taken_where_wanted(prepared: Prepared) -> None:
    schema = described(prepared.python, actions="minerl", **CAVE)["schema"]
    assert len(schema["action"]) == 24
    assert schema["action"]["camera"]["kind"] == "box"


def test_an_engine_that_crashes_costs_the_episode_and_is_replaced(prepared: Prepared, schema: Schema) -> None:
    with opened(prepared, schema, CAVE) as pool:
        reset(pool)
        for engine in prepared.engines():
            engine.kill()
        ready = step(pool, NOTHING)
        assert ready.kind.tolist() == [Kind.FAILED]
        assert ready.failures[0].kind == "error"
        assert "Minecraft is gone or does not answer" in ready.failures[0].text
        assert reset(pool).kind.tolist() == [Kind.RESET]
        assert step(pool, NOTHING).kind.tolist() == [Kind.STEP]
        assert len(prepared.engines()) == 1


def test_an_engine_that_freezes_is_replaced_before_the_pool_gives_its_process_up(
    prepared: Prepared, schema: Schema
) -> None:
    with opened(prepared, schema, CAVE | {"step_timeout_s": 1.0}) as pool:
        reset(pool)
        step(pool, NOTHING)
        for engine in prepared.engines():
            engine.suspend()
        ready = step(pool, NOTHING)
        assert (ready.kind.tolist(), ready.failures[0].kind) == ([Kind.FAILED], "error")
        assert reset(pool).kind.tolist() == [Kind.RESET]
        assert len(prepared.engines()) == 1


def test_minerl_env_after_a_failure_refuses_steps_and_resets_until_made_anew(prepared: Prepared) -> None:
    code = """
import os, signal
from minefleet_env.errors import EnvError
env = make("MineRLBasaltFindCave-v0")
env.reset()
os.kill(env._env.unwrapped.instances[0].minecraft_process.pid, signal.SIGKILL)
said = []
for call in (lambda: env.step({"buttons": 0, "camera": 60}), lambda: env.step({"buttons": 0, "camera": 60}), env.reset):
    try:
        call()
    except EnvError as error:
        said.append(str(error))
env.close()
print(json.dumps(said))
"""
    first, *later = run(prepared.python, code)
    assert "Minecraft is gone" in first
    assert len(later) == 2
    assert all("must be made anew" in text for text in later)


def test_an_engine_that_ends_at_its_start_says_its_last_words(
    prepared: Prepared, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("ENGINE_DIE_AT_START", "no luck today")
    with pytest.raises(EnvFailedError, match=r"Minecraft ended at its start\. It said: .*no luck today") as told:
        described(prepared.python, **CAVE)
    assert "Traceback" not in str(told.value)


def test_minerl_env_whose_picture_is_missing_fails(
    prepared: Prepared, schema: Schema, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("ENGINE_GARBAGE_AT", "2")
    with opened(prepared, schema, CAVE) as pool:
        reset(pool)
        assert step(pool, NOTHING).kind.tolist() == [Kind.STEP]
        assert step(pool, NOTHING).kind.tolist() == [Kind.FAILED]


def test_minerl_make_with_an_invalid_argument_is_refused_with_the_reason(prepared: Prepared) -> None:
    refused = {
        "no environment 'MineRLBasaltFindCaves-v0'; the nearest are MineRLBasalt": {"id": "MineRLBasaltFindCaves-v0"},
        "actions must be one of vpt, minerl, got 'keys'": CAVE | {"actions": "keys"},
        "has no observable 'inventory'; it has none": CAVE | {"observables": ["inventory"]},
        "frame_size must be [height, width]": CAVE | {"frame_size": [128]},
        "both >= 1, got 128": CAVE | {"frame_size": 128},
        "no item 'iron_swrd'; the nearest are iron_sword": SURVIVAL | {"inventory": [{"type": "iron_swrd"}]},
        "'gras_block' is not an object of mine_block": CAVE | {"rewards": [DIG | {"objects": ["gras_block"]}]},
    }
    code = f"""
said = []
for kwargs in {list(refused.values())}:
    try:
        make(**kwargs)
    except RefusedError as error:
        said.append(str(error))
print(json.dumps(said))
"""
    for message, said in zip(refused, run(prepared.python, code), strict=True):
        assert message in said


def test_an_engine_that_was_not_built_is_refused(prepared: Prepared) -> None:
    with pytest.raises(ConfigError, match=r"engine is not built: there is no .*MCP-Reborn/launchClient\.sh"):
        described(minerl_python(), **CAVE)


def test_an_interpreter_without_minerl_is_refused() -> None:
    with pytest.raises(ConfigError, match="has no MineRL"):
        described("", **CAVE)


@pytest.mark.fleet
def test_minerl_example_is_trained(prepared: Prepared, train: Callable[..., Fleet]) -> None:
    small = (
        "policy.conv_channels=[8,8,8]",
        "policy.hidden_size=16",
        "policy.gru_size=16",
        "train_config.num_iterations=1",
    )
    worker = "rollout_config.worker_config"
    keys = (f"{worker}.num_envs=2", f"{worker}.max_rss_bytes=0", "rollout_config.fragment_length=32", *small)
    fleet = train(str(EXAMPLE), f"env.python={prepared.python}", *keys)
    fleet.finish()
    assert fleet.rows()[-1]["trained_steps"] >= 64
