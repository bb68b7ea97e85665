from importlib import resources
from pathlib import Path
from typing import Any, cast

import pytest
import yaml
from omegaconf import OmegaConf

from minefleet.config import PolicyConfig
from minefleet.config.key_docs import key_docs
from minefleet.config.keys import all_keys
from minefleet.config.load import (
    MEMORY,
    MINESTUDIO,
    PIXELS,
    VECTORS,
    from_data,
    from_settings,
    load,
    name_of,
    read_settings,
    to_yaml,
)
from minefleet.config.other_library_keys import OTHER_NAMES, OUR_KEYS
from minefleet.config.yaml_text import as_yaml
from minefleet.core.errors import ConfigError
from minefleet.core.schema import Leaf, Schema
from minefleet.core.tree import Tree
from minefleet.presets import presets
from minefleet.runs.run_yaml import to_dict

MODULE = """
print("whatever a module prints")

def env_generator():
    return None

def policy_generator():
    return None

online_dict = {"seed": 5, "train_config": {"discount": 0.9}, "rollout_config": {"episode_statistics_config": {}}}
"""


@pytest.mark.parametrize("preset", presets())
def test_every_preset_survives_the_way_through_yaml(preset: str) -> None:
    config = load(preset)
    assert from_data(to_dict(config), "plain data") == config
    assert from_data(OmegaConf.to_container(OmegaConf.create(to_yaml(config))), "YAML") == config  # type: ignore[arg-type]


def test_overrides_win_over_the_file_and_the_last_one_over_the_others(tmp_path: Path) -> None:
    path = tmp_path / "mine.yaml"
    path.write_text("seed: 1\ntrain_config:\n  discount: 0.5\n  learning_rate: 1e-4\n")
    config = load(str(path), ["train_config.discount=0.7", "seed=2", "seed=3", "env.kwargs.size=[1, 2]"])
    assert (config.seed, config.train_config.discount, config.train_config.learning_rate) == (3, 0.7, 1e-4)
    assert config.env.kwargs == {"size": [1, 2]}


def test_a_file_stands_on_the_preset_that_it_names(tmp_path: Path) -> None:
    path = tmp_path / "mine.yaml"
    path.write_text("preset: recall\ntrain_config: {discount: 0.5}\nlogger_config: {tags: [a]}\n")
    mine, recall = load(str(path), ["policy.gru_size=8"]), load("recall")
    assert (mine.train_config.discount, mine.policy.gru_size, mine.logger_config.init) == (0.5, 8, {"tags": ["a"]})
    assert mine.train_config.learning_rate == recall.train_config.learning_rate
    assert mine.env == recall.env
    assert load(str(path), ["preset=pendulum"]).env == load("pendulum").env


@pytest.mark.parametrize("given", ["env: {id: Acrobot-v1}", "env: {generator: 'my.world:make'}"])
def test_config_that_names_another_environment_takes_no_env_kwargs_from_its_preset(tmp_path: Path, given: str) -> None:
    path = tmp_path / "mine.yaml"
    path.write_text(f"preset: recall\n{given}\n")
    assert load("recall").env.kwargs == {"delay": 16}
    assert load(str(path)).env.kwargs == {}
    assert load(str(path)).policy == load("recall").policy
    path.write_text("preset: recall\n")
    assert load(str(path), ["env.id=Acrobot-v1"]).env.kwargs == {}
    assert load(str(path), ["env.kwargs.delay=4"]).env.kwargs == {"delay": 4}


@pytest.mark.parametrize("given", ["recal", "[recall]", "", "mine.yaml"])
def test_config_whose_preset_is_unknown_is_refused(tmp_path: Path, given: str) -> None:
    path = tmp_path / "mine.yaml"
    path.write_text(f"preset: {given}\n")
    with pytest.raises(ConfigError, match="unknown preset"):
        load(str(path))


KINDS = (VECTORS, PIXELS, MEMORY)
IMAGE, NUMBERS = Leaf(kind="box", shape=(64, 64, 3), dtype="uint8"), Leaf(kind="box", shape=(4,), dtype="float32")


def test_presets_of_the_kinds_of_task_set_the_same_keys() -> None:
    folder = resources.files("minefleet") / "presets"
    said = [yaml.safe_load((folder / f"{kind}.yaml").read_text()) for kind in KINDS]
    first, *others = [{name: set(section) for name, section in one.items()} for one in said]
    assert others == [first, first]


@pytest.mark.parametrize(
    ("given", "obs", "base"),
    [
        ("env: {id: A-v1}", None, VECTORS),
        ("env: {id: A-v1}", NUMBERS, VECTORS),
        ("env: {id: A-v1}", {"image": IMAGE, "compass": NUMBERS}, PIXELS),
        ("env: {id: A-v1}\npolicy: {gru_size: 8}", NUMBERS, MEMORY),
        ("env: {id: A-v1}\npolicy: {gru_size: 8}", IMAGE, MEMORY),
        ("env: {id: A-v1}\npolicy: {gru_size: 0}", IMAGE, PIXELS),
        ("env: {id: A-v1}", Leaf(kind="box", shape=(7, 7, 3), dtype="uint8"), VECTORS),
        ("preset: vectors\nenv: {id: A-v1}", IMAGE, VECTORS),
        ("detach_rollout_manager: true", IMAGE, MINESTUDIO),
    ],
)
def test_config_without_a_preset_stands_on_that_of_its_kind(tmp_path: Path, given: str, obs: Tree, base: str) -> None:
    path = tmp_path / "mine.yaml"
    path.write_text(given)
    schema = None if obs is None else Schema(obs=obs, action=NUMBERS)
    config, wanted = read_settings(str(path)).of(schema), load(base)
    assert config.train_config == wanted.train_config
    assert config.rollout_config == wanted.rollout_config


def test_a_policy_of_a_generator_takes_nothing_from_the_kind_of_task(tmp_path: Path) -> None:
    path = tmp_path / "mine.yaml"
    path.write_text("policy: {generator: 'my.policy:make'}")
    assert load(str(path)).policy == PolicyConfig(generator="my.policy:make")


def test_config_keys_that_are_given_win_over_the_kind_of_task(tmp_path: Path) -> None:
    path = tmp_path / "mine.yaml"
    path.write_text("train_config: {learning_rate: 0.5}")
    config = read_settings(str(path), ["policy.hidden_size=7"]).of(Schema(obs=IMAGE, action=NUMBERS))
    assert (config.train_config.learning_rate, config.policy.hidden_size) == (0.5, 7)
    assert config.train_config.ppo_clip == load(PIXELS).train_config.ppo_clip


def test_a_module_gives_its_settings_and_its_generators(tmp_path: Path) -> None:
    path = tmp_path / "mine.py"
    path.write_text(MODULE)
    config = load(str(path), ["seed=6"])
    assert (config.seed, config.train_config.discount) == (6, 0.9)
    assert config.env.generator == f"{path}:env_generator"
    assert config.policy.generator == f"{path}:policy_generator"


def test_relative_paths_are_taken_from_where_they_are_written(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (tmp_path / "below").mkdir()
    (tmp_path / "below" / "mine.yaml").write_text("env: {generator: 'world.py:make', python: .old/bin/python}\n")
    monkeypatch.chdir(tmp_path)
    config = load("below/mine.yaml", ["policy.generator=brain.py:make", "train_config.resume=old"])
    assert config.env.generator == f"{tmp_path}/below/world.py:make"
    assert config.env.python == f"{tmp_path}/below/.old/bin/python"
    assert load("cartpole", ["env.python=python3.8"]).env.python == "python3.8"
    assert config.policy.generator == f"{tmp_path}/brain.py:make"
    assert config.train_config.resume == f"{tmp_path}/old"


@pytest.mark.parametrize(
    ("override", "message"),
    [
        (
            "train_config.discont=1",
            r"unknown key train_config\.discont \(command line\); the nearest is train_config\.disc",
        ),
        ("max_staleness=1", r"nearest is rollout_config\.replay_buffer_config\.max_staleness"),
        ("sed=1", "the nearest is seed"),
        ("stop.zzz=1", r"unknown key stop\.zzz .* stop has"),
        ("services.replay.adress=x:1", r"nearest is services\.replay\.address"),
        ("train_config.discount=high", r"train_config\.discount \(command line\) must be a number, got 'high'"),
        ("train_config.num_iterations=1.5", r"train_config\.num_iterations .* must be an integer, got 1\.5"),
        ("train_config.clip_vloss=maybe", "must be true or false, got 'maybe'"),
        ("train_config.gae_values=old", "must be one of recomputed, behaviour, got 'old'"),
        ("stop.episode_return=high", "must be a number or null, got 'high'"),
        ("policy.conv_channels=[a]", r"must be a list, each of it an integer, got \['a'\]"),
        ("env.kwargs=3", r"env\.kwargs .* must be a mapping, got 3"),
        ("train_config=3", r"train_config .* must be a section of keys, got 3"),
        ("seed.x=3", "seed .* must be an integer"),
        ("train_config.discount=2", r"train_config\.discount must lie in \[0, 1\], got 2"),
        ("train_config.learning_rate=nan", r"train_config\.learning_rate must be > 0 and finite, got nan"),
        ("train_config.entropy_bonus_coef=.inf", r"entropy_bonus_coef must be >= 0 and finite, got inf"),
        ("train_config.parity_bound=nan", r"parity_bound must be > 0 and finite, got nan"),
        (
            "train_config.learning_rate_schedule=[0,1]",
            r"learning_rate_schedule \(command line\) must be a list, each of it a list, .* got \[0, 1\]",
        ),
        ("train_config.burn_in=1000", r"burn_in must be < rollout_config\.fragment_length = 32, got 1000"),
        ("env.id=${nowhere}", r"env\.id: .*nowhere"),
        ("env.kwargs={a: [1", "is no YAML"),
        ("seed", "an override is key=value, got 'seed'"),
    ],
)
def test_a_wrong_override_is_named_with_what_would_be_right(override: str, message: str) -> None:
    with pytest.raises(ConfigError, match=message):
        load("cartpole", [override])


def test_a_wrong_key_in_a_file_is_named_with_the_file(tmp_path: Path) -> None:
    path = tmp_path / "mine.yaml"
    path.write_text("train_config:\n  ppo_clipp: 0.1\n")
    with pytest.raises(
        ConfigError, match=rf"unknown key train_config\.ppo_clipp \({path}\); .* train_config\.ppo_clip"
    ):
        load(str(path))


@pytest.mark.parametrize(
    ("config", "message"),
    [
        ("cartpol", "'cartpol' is no preset, .* or id such as CartPole-v1; the nearest is cartpole"),
        ("Taxi", "'Taxi' is no preset, .*; the nearest is Taxi-v"),
        ("zzzz", "'zzzz' is no preset, .*; there are acrobot, "),
        ("nowhere.yaml", r"cannot read nowhere\.yaml: No such file"),
        ("nowhere.py", r"there is no file nowhere\.py"),
        ("broken.yaml", r"broken\.yaml is no YAML: .* in line 4"),
        ("list.yaml", r"list\.yaml must hold keys and values"),
        ("empty.py", r"has none of online_dict, env_generator, policy_generator; .* env\.generator=empty\.py:NAME"),
        ("raising.py", r"ValueError: out of luck .*raising\.py, line 1\)"),
        ("leaving.py", "exit code 3"),
        ("settings.py", "online_dict must be a dict, got a int"),
    ],
)
def test_a_config_that_cannot_be_read_says_why(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, config: str, message: str
) -> None:
    files = {
        "broken.yaml": "seed: 1\nenv:\n  id: [\n",
        "list.yaml": "- 1\n",
        "empty.py": "",
        "raising.py": "raise ValueError('out of luck')\n",
        "leaving.py": "import sys\nsys.exit(3)\n",
        "settings.py": "online_dict = 3\n",
    }
    for name, text in files.items():
        (tmp_path / name).write_text(text)
    monkeypatch.chdir(tmp_path)
    with pytest.raises(ConfigError, match=message):
        load(config)


def test_config_of_an_empty_file_is_all_defaults(tmp_path: Path) -> None:
    (tmp_path / "empty.yaml").write_text("")
    assert load(str(tmp_path / "empty.yaml")) == from_data({}, "nothing")


def test_all_keys_lists_nested_keys_in_full() -> None:
    assert {"seed", "stop.minutes", "rollout_config.replay_buffer_config.database_config.path"} <= set(all_keys())


@pytest.mark.parametrize(
    ("config", "name"),
    [
        ("crafter", "crafter"),
        ("my/world.yaml", "world"),
        ("cow.py", "cow"),
        ("ale_py:ALE/Pong-v5", "Pong-v5"),
        ("a.b:Cow-v0", "Cow-v0"),
    ],
)
def test_a_config_has_a_short_name(config: str, name: str) -> None:
    assert name_of(config) == name


def test_a_trainer_of_a_file_is_found_beside_its_configuration(tmp_path: Path) -> None:
    (tmp_path / "mine.yaml").write_text("trainer_name: mine.py:Mine\n")
    (tmp_path / "mine.py").write_text('online_dict = {"trainer_name": "mine.py:Mine"}\n')
    for name in ("mine.yaml", "mine.py"):
        assert load(str(tmp_path / name)).trainer_name == f"{tmp_path}/mine.py:Mine"
    with pytest.raises(
        ConfigError, match=r"trainer_name must be PPOTrainer, module:Class or file\.py:Class, got 'PPO'"
    ):
        load("cartpole", ["trainer_name=PPO"])


def test_keys_of_wandb_may_stand_in_its_section_and_others_may_not(tmp_path: Path) -> None:
    path = tmp_path / "mine.yaml"
    path.write_text("logger_config: {project: p, entity: us, tags: [a]}\n")
    logger = load(str(path), ["logger_config.group=g"]).logger_config
    assert (logger.project, logger.init) == ("p", {"entity": "us", "tags": ["a"], "group": "g"})
    for key in ("entitty", "init.entitty", "id"):
        with pytest.raises(ConfigError, match=f"logger_config.{key}"):
            load("cartpole", [f"logger_config.{key}=x"])


@pytest.mark.parametrize(
    ("override", "there"),
    [
        ("env_config.x=1", "`rollout_config.worker_config`"),
        ("train_config.scaling_config.num_workers=2", "train_config.num_gpus_per_worker"),
    ],
)
def test_keys_that_only_others_have_are_refused_with_what_is_there_instead(override: str, there: str) -> None:
    with pytest.raises(ConfigError, match=there):
        load("cartpole", [override])


def test_several_ranks_train_by_our_trainer_only() -> None:
    with pytest.raises(ConfigError, match=r"train_config\.num_workers must be 1 with a trainer of your own, got 2"):
        load("cartpole", ["trainer_name=mine:Mine", "train_config.num_workers=2"])


@pytest.mark.parametrize("name", ["MountainCar-v0", "ALE/Boxing-v5", "module:Id-v0", "a.module:ALE/Boxing-v5"])
def test_an_id_as_config_is_its_environment_on_the_preset_of_its_kind(name: str) -> None:
    settings = read_settings(name)
    assert settings.of().env.id == name
    assert settings.of(Schema(obs=IMAGE, action=NUMBERS)).train_config == load(PIXELS).train_config
    assert load("", [f"env.id={name}"]) == settings.of()


@pytest.mark.parametrize(
    ("name", "preset"), [("CartPole-v1", "cartpole"), ("ale_py:ALE/Pong-v5", "atari"), ("ALE/Pong-v5", "atari")]
)
def test_the_id_of_a_presets_environment_is_that_preset(name: str, preset: str) -> None:
    assert load(name) == load(preset)
    assert load("", [f"env.id={load(preset).env.id}"]) == load(preset)
    assert load(name, ["env.id=MountainCar-v0"]).env.id == "MountainCar-v0"


def test_config_file_whose_name_looks_like_an_env_id_is_read(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (tmp_path / "mine").mkdir()
    (tmp_path / "mine" / "world-v2").write_text("seed: 7\n")
    monkeypatch.chdir(tmp_path)
    assert load("mine/world-v2").seed == 7


def test_names_of_other_libraries_lead_to_keys_that_there_are_and_hide_none() -> None:
    paths = {key.path for key in key_docs()}
    assert set(OUR_KEYS.values()) <= paths
    assert not OTHER_NAMES.keys() & paths
    for name, text in OTHER_NAMES.items():
        with pytest.raises(ConfigError) as refusal:
            load("cartpole", [f"{name}.x=1" if name == "env_config" else f"{name}=1"])
        # `env` is a section of ours: there its value is refused.
        assert text in str(refusal.value) or name == "env"


def test_names_of_other_libraries_are_refused_in_files_too(tmp_path: Path) -> None:
    (tmp_path / "mine.yaml").write_text("train_config: {lr: 0.1}\n")
    with pytest.raises(
        ConfigError, match=r"no train_config\.lr \(.*mine\.yaml\): here it is train_config\.learning_rate"
    ):
        load(str(tmp_path / "mine.yaml"))


def test_whole_floats_are_taken_for_integers_and_others_refused(tmp_path: Path) -> None:
    (tmp_path / "mine.yaml").write_text("stop: {env_steps: 2e5}\npolicy: {conv_channels: [8.0, 16, 16]}\n")
    config = load(str(tmp_path / "mine.yaml"), ["train_config.num_iterations=1e3", "train_config.learning_rate=1"])
    integers = (config.stop.env_steps, config.train_config.num_iterations, *config.policy.conv_channels)
    assert integers == (200_000, 1_000, 8, 16, 16) and {type(number) for number in integers} == {int}
    with pytest.raises(ConfigError, match=r"stop\.env_steps \(command line\) must be an integer, got 1\.5"):
        load("cartpole", ["stop.env_steps=1.5"])


UNBOUNDED = {"train_config.parity_bound"}
"""Infinity switches it off."""


@pytest.mark.parametrize("key", [key.path for key in key_docs() if key.type in ("int", "float", "float | None")])
def test_numbers_that_nothing_can_use_are_refused(key: str) -> None:
    is_integer = next(each.type for each in key_docs() if each.path == key) == "int"
    for value in (str(2**64), str(2**63), "1e300") if is_integer else (".nan", ".inf", "-.inf"):
        if key not in UNBOUNDED or value != ".inf":
            with pytest.raises(ConfigError, match=key.replace(".", r"\.")):
                load("cartpole", [f"{key}={value}"])


def test_config_takes_the_largest_seed() -> None:
    assert load("cartpole", [f"seed={2**63 - 1}"]).seed == 2**63 - 1


@pytest.mark.parametrize("key", ["seed", "train_config.resume", "env.kwargs.size", "services.security.token_file"])
def test_a_key_that_must_be_given_is_refused_until_it_is(tmp_path: Path, key: str) -> None:
    path = tmp_path / "mine.yaml"
    path.write_text(OmegaConf.to_yaml(OmegaConf.from_dotlist([f"{key}=???"])))
    with pytest.raises(ConfigError, match=rf"{key} \({path}\) must be given: it is \?\?\?"):
        load(str(path))
    assert load(str(path), [f"{key}=3"]) == load("", [f"{key}=3"])


@pytest.mark.parametrize("settings", [{"train_config": OmegaConf.create({"discount": 0.5})}, OmegaConf.create({})])
def test_settings_that_mix_dicts_and_omegaconf_are_read(tmp_path: Path, settings: Any) -> None:
    expected = settings.get("train_config", {}).get("discount", load("minestudio").train_config.discount)
    assert from_settings(settings, "cfg", {}).train_config.discount == expected
    (tmp_path / "mine.py").write_text(
        "from omegaconf import OmegaConf\n"
        "online_dict = {'train_config': OmegaConf.create({'discount': 0.5}), 'env': {'id': 'CartPole-v1'}}\n"
    )
    assert load(str(tmp_path / "mine.py")).train_config.discount == 0.5


def test_settings_that_are_no_mapping_are_refused() -> None:
    with pytest.raises(ConfigError, match="cfg must be a dict or a DictConfig, got 'cartpole'"):
        from_settings(cast(Any, "cartpole"), "cfg", {})
    with pytest.raises(ConfigError, match="whole_config is no configuration"):
        as_yaml({"a": object()}, "whole_config")
    assert as_yaml(OmegaConf.create({"a": {"b": 1}}), "whole_config") == as_yaml({"a": {"b": 1}}, "") == "a:\n  b: 1\n"
