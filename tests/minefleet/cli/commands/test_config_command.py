"""`minefleet config`: differences, and meanings of keys."""

from pathlib import Path

import pytest

from minefleet.cli import main
from minefleet.config.key_docs import key_docs
from minefleet.config.load import load
from minefleet.presets import presets


def shown(capsys: pytest.CaptureFixture[str], *arguments: str) -> str:
    """The output of a command that ends well."""
    assert main(["config", *arguments]) == 0
    return capsys.readouterr().out


def test_config_diff_names_the_source_and_default_of_each_key(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    path = tmp_path / "mine.yaml"
    path.write_text("preset: cartpole\ntrain_config: {discount: 0.5}\n")
    lines = shown(capsys, "show", "--diff", str(path), "seed=3").splitlines()
    assert "seed: 3  # command line; default 0" in lines
    assert f"  discount: 0.5  # {path}; default 0.99" in lines
    assert "  gae_lambda: 0.8  # preset cartpole; default 0.95" in lines
    assert "  anneal_lr_linearly: true  # preset cartpole; default false" in lines
    assert not [line for line in lines if "weight_decay" in line]


@pytest.mark.parametrize("config", [*presets(), "CartPole-v1"])
def test_config_diff_loads_as_the_configuration_that_it_was_made_from(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], config: str
) -> None:
    overrides = [
        "seed=3",
        "env.kwargs.a={b: [1, 'x: y']}",
        "train_config.discount=0.99",
        "services.replay[0].listen='a:1'",
    ]
    path = tmp_path / "difference.yaml"
    path.write_text(shown(capsys, "show", "--diff", config, *overrides))
    assert load(str(path)) == load(config, overrides)


def test_config_explain_of_a_key_shows_type_default_meaning_and_value(capsys: pytest.CaptureFixture[str]) -> None:
    for word in ("train_config.discount", "discount", "gamma"):
        text = shown(capsys, "explain", word, "cartpole")
        assert text.startswith("train_config.discount: float = 0.99  # here 0.98\n")
        assert "Discount per step, in [0, 1]: γ." in text
    assert shown(capsys, "explain", "seed", "seed=3").startswith("seed: int = 0  # here 3\n")


def test_config_explain_of_a_section_or_of_nothing_lists_its_keys(capsys: pytest.CaptureFixture[str]) -> None:
    everything = [key.path for key in key_docs()]
    for arguments, keys in (("stop",), [key for key in everything if key.startswith("stop.")]), ((), everything):
        lines = shown(capsys, "explain", *arguments).splitlines()
        assert [line.partition(" = ")[0] for line in lines if not line.startswith(" ")] == keys


def test_config_explain_of_a_word_that_is_no_key_finds_the_keys_that_mention_it(
    capsys: pytest.CaptureFixture[str],
) -> None:
    text = shown(capsys, "explain", "schedule")
    assert "train_config.learning_rate_schedule = []" in text and "train_config.entropy_schedule = []" in text
    assert "train_config.anneal_lr_linearly = False" in shown(capsys, "explain", "Linearly")


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (("explain", "train_config.discont"), "the nearest is train_config.discount"),
        (("explain", "num_workers_"), "num_workers"),
        (("explain", "seed", "--diff"), "there is no option --diff"),
        (("show",), "give a CONFIG"),
    ],
)
def test_config_command_with_a_mistake_exits_2_and_names_it(
    capsys: pytest.CaptureFixture[str], arguments: tuple[str, ...], message: str
) -> None:
    assert main(["config", *arguments]) == 2
    assert message in capsys.readouterr().err
