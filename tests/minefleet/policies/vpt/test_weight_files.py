import json
import os
import pickle
import subprocess
import zipfile
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from safetensors.torch import save_file
from tests.minefleet.policies.vpt.published import model_file, net_kwargs, their_names
from torch import Tensor

from minefleet.cli import main
from minefleet.core.errors import ConfigError
from minefleet.policies.vpt import PRESETS, VPTPolicy, load_vpt_policy, write_policy
from minefleet.policies.vpt.weight_files import read_architecture, read_weights
from minefleet.policies.vpt.weight_names import our_name, our_value_norm

Attack = Callable[[Path], object]


class Calls:
    """Pickled, it is a call."""

    def __init__(self, function: Callable[..., object], *arguments: object) -> None:
        self.call = (function, arguments)

    def __reduce__(self) -> tuple[Callable[..., object], tuple[object, ...]]:
        return self.call


class Space:
    """Stands for an object of a library that is not installed."""

    def __init__(self) -> None:
        self.n = 3


def same(policy: VPTPolicy, other: VPTPolicy) -> bool:
    ours, theirs = policy.state_dict(), other.state_dict()
    return list(ours) == list(theirs) and all(torch.equal(ours[name], theirs[name]) for name in ours)


def test_vpt_policy_tensors_all_have_a_published_name(model: Path) -> None:
    policy = load_vpt_policy(model)
    statistics = {"value_norm.mean", "value_norm.variance", "value_norm.weight"}
    assert {our_name(name) for name in their_names(2)} | statistics == set(policy.state_dict())
    assert [our_name(name) for name in policy.state_dict()] == list(policy.state_dict())


def test_published_files_make_the_policy_that_they_describe(model: Path, weights: Path) -> None:
    policy = load_vpt_policy(str(model), str(weights))
    assert policy.architecture == read_architecture(model)
    theirs = torch.load(weights, weights_only=True)
    query = policy.state_dict()["network.blocks.1.attention.query.weight"]
    assert torch.equal(query, theirs["net.recurrent_layer.blocks.1.r.orc_block.q_layer.weight"])
    assert policy.value_norm.weight.item() == 0.5


@pytest.mark.parametrize("legacy", [False, True])
def test_weights_are_read_in_every_form_that_they_come_in(model: Path, weights: Path, legacy: bool) -> None:
    wanted, theirs = load_vpt_policy(model, weights), torch.load(weights, weights_only=True)
    checkpoint = weights.with_name("model.ckpt")
    torch.save(theirs, checkpoint, _use_new_zipfile_serialization=not legacy)
    offline = weights.with_name("offline.ckpt")
    prefixed = {f"mine_policy.{name}": tensor for name, tensor in theirs.items()}
    torch.save({"state_dict": prefixed, "epoch": 3}, offline, _use_new_zipfile_serialization=not legacy)
    shared = weights.with_name("model.safetensors")
    save_file(theirs, shared)
    for path in (checkpoint, offline, shared):
        assert same(load_vpt_policy(model, path), wanted)


def test_load_vpt_policy_turns_halves_into_floats_and_ignores_unused_tensors(model: Path, weights: Path) -> None:
    theirs: dict[str, Tensor] = torch.load(weights, weights_only=True)
    torch.save({name: tensor.half() for name, tensor in theirs.items()} | {"more": torch.zeros(3)}, weights)
    assert {parameter.dtype for parameter in load_vpt_policy(model, weights).parameters()} == {torch.float32}


def test_vpt_policy_that_was_converted_is_read_back(model: Path, weights: Path, tmp_path: Path) -> None:
    policy = load_vpt_policy(model, weights)
    write_policy(policy, tmp_path / "out")
    assert same(load_vpt_policy(tmp_path / "out"), policy)
    assert same(load_vpt_policy(model, tmp_path / "out"), policy)
    assert {path.name for path in (tmp_path / "out").iterdir()} == {"architecture.json", "model.safetensors"}


def test_vpt_convert_writes_the_policy_and_refuses_a_filled_directory(
    model: Path, weights: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    out = tmp_path / "out"
    assert main(["vpt", "convert", str(model), str(weights), str(out)]) == 0
    report = json.loads(capsys.readouterr().out)
    assert report["architecture"]["hidden_size"] == 64
    assert same(load_vpt_policy(out), load_vpt_policy(model, weights))
    assert main(["vpt", "convert", str(model), str(weights), str(out)]) == 2
    assert "is not empty" in capsys.readouterr().err


@pytest.mark.parametrize("debiasing", [0.0, 1e-6, 0.3, 1.0])
def test_values_are_denormalised_as_published(debiasing: float) -> None:
    share = max(debiasing, 1e-5)
    policy = VPTPolicy(PRESETS["tiny"])
    mean_sq = torch.tensor([2.0 * debiasing])
    statistics = our_value_norm(torch.tensor([1.2 * debiasing]), mean_sq, torch.tensor(debiasing))
    policy.load_state_dict(statistics, strict=False)
    mean = 1.2 * debiasing / share
    wanted = 0.7 * max(2 * debiasing / share - mean**2, 1e-2) ** 0.5 + mean
    assert policy.value_norm.denormalize(torch.tensor(0.7)).item() == pytest.approx(wanted, abs=1e-5)


ATTACKS: dict[str, Any] = {
    "os.system": lambda mark: Calls(os.system, f"touch {mark}"),
    "eval": lambda mark: Calls(eval, f"__import__('os').mkdir({str(mark)!r})"),
    "subprocess": lambda mark: Calls(subprocess.check_call, ["touch", str(mark)]),
    "os.mkdir": lambda mark: Calls(os.mkdir, str(mark)),
}


@pytest.mark.parametrize("protocol", range(pickle.HIGHEST_PROTOCOL + 1))
@pytest.mark.parametrize("attack", ATTACKS.values(), ids=ATTACKS)
def test_a_hostile_model_runs_nothing_and_is_refused_by_name(tmp_path: Path, attack: Attack, protocol: int) -> None:
    mark, path = tmp_path / "mark", tmp_path / "hostile.model"
    path.write_bytes(pickle.dumps(model_file(net_kwargs()) | {"more": attack(mark)}, protocol))
    with pytest.raises(ConfigError, match=r"hostile\.model is no description of a model: it names "):
        load_vpt_policy(path)
    assert not mark.exists()
    pickle.loads(path.read_bytes())  # noqa: S301  # The attack is one.
    assert mark.exists()


@pytest.mark.parametrize("attack", ATTACKS.values(), ids=ATTACKS)
def test_hostile_weights_run_nothing_and_are_refused_by_name(model: Path, tmp_path: Path, attack: Attack) -> None:
    mark, path = tmp_path / "mark", tmp_path / "hostile.weights"
    torch.save({"net.final_ln.weight": attack(mark)}, path)
    with pytest.raises(
        ConfigError, match=r"hostile\.weights cannot be loaded as weights alone, it names \S+, and nothing"
    ):
        load_vpt_policy(model, path)
    assert not mark.exists()
    torch.load(path, weights_only=False)  # The attack is one.
    assert mark.exists()


@pytest.mark.parametrize("protocol", range(3))
def test_objects_of_other_libraries_in_a_model_are_not_made(tmp_path: Path, protocol: int) -> None:
    path = tmp_path / "with_spaces.model"
    content = model_file(net_kwargs()) | {"spaces": [Space(), np.zeros(3), np.float32(2.0)]}
    path.write_bytes(pickle.dumps(content, protocol).replace(Space.__module__.encode(), b"gone.spaces"))
    assert b"gone.spaces" in path.read_bytes()
    assert read_architecture(path).hidden_size == 64


def as_a_key(body: bytes) -> bytes:
    """The pickle of a dict whose key is the value that a part of a pickle makes."""
    return b"\x80\x02}" + body + b"K\x01s."


def doubled(times: int) -> bytes:
    """The part that makes a tuple of the same tuple twice, and so on."""
    value: tuple[Any, ...] = ()
    for _ in range(times):
        value = (value, value)
    return pickle.dumps(value, 2)[2:-1]


BOMBS = {
    "a key that is hashed for ever": as_a_key(doubled(60)),
    "a key too deep to be hashed": as_a_key(b")" + b"\x85" * 200_000),
    "room for more than there is": b"\x80\x02Nr" + (2**31).to_bytes(4, "little") + b".",
    "copies of a list": b"\x80\x02]q\x00(" + b"N" * 200_000 + b"e" + b"c__builtin__\nlist\nh\x00\x85R" * 5_000 + b".",
}


@pytest.mark.parametrize("content", BOMBS.values(), ids=BOMBS)
def test_vpt_model_file_that_would_unpickle_without_end_is_refused_before_it_does(model: Path, content: bytes) -> None:
    model.write_bytes(content)
    with pytest.raises(ConfigError, match=r"tiny\.model is no description of a model: it (becomes|remembers)"):
        load_vpt_policy(model)


@pytest.mark.parametrize("content", BOMBS.values(), ids=BOMBS)
@pytest.mark.parametrize("legacy", [False, True])
def test_vpt_weights_that_would_grow_without_end_are_refused_by_name(
    model: Path, weights: Path, content: bytes, legacy: bool
) -> None:
    if legacy:
        weights.write_bytes(content)
    else:
        with zipfile.ZipFile(weights, "w") as archive:
            archive.writestr("archive/data.pkl", content)
            archive.writestr("archive/version", "3")
    with pytest.raises(
        ConfigError, match=r"tiny\.weights cannot be loaded as weights alone, it is damaged: it (becomes|remembers)"
    ):
        load_vpt_policy(model, weights)


@pytest.mark.parametrize("kind", ["meta", "sparse", "integers", "nan"])
def test_load_vpt_policy_odd_tensor_is_refused_by_name(model: Path, weights: Path, kind: str) -> None:
    theirs: dict[str, Tensor] = torch.load(weights, weights_only=True)
    name = "net.final_ln.weight"
    odd: dict[str, Callable[[Tensor], Tensor]] = {
        "meta": lambda t: t.to("meta"),
        "sparse": Tensor.to_sparse,
        "integers": Tensor.int,
        "nan": lambda t: t * np.nan,
    }
    torch.save(theirs | {name: odd[kind](theirs[name])}, weights)
    with pytest.raises(ConfigError, match=r"tiny\.weights does not fit the network: network\.norm\.weight "):
        load_vpt_policy(model, weights)


def test_vpt_files_that_are_no_regular_files_are_refused_and_not_waited_for(model: Path, weights: Path) -> None:
    for path in (model, weights):
        content = path.read_bytes()
        path.unlink()
        os.mkfifo(path)
        with pytest.raises(ConfigError, match=f"{path.name} is no file"):
            load_vpt_policy(model, weights)
        path.unlink()
        path.write_bytes(content)


@pytest.mark.parametrize(
    "changes",
    [
        {"n_recurrence_layers": 10**9},
        {"hidsize": 2**40},
        {"img_shape": [10**9, 10**9, 3]},
        {"impala_width": float("inf")},
        {"hidsize": float("inf")},
        {"attention_memory_size": 10**12},
    ],
)
def test_vpt_model_file_of_a_network_too_large_is_refused(model: Path, changes: dict[str, Any]) -> None:
    model.write_bytes(pickle.dumps(model_file(net_kwargs() | changes)))
    with pytest.raises(ConfigError, match=r"tiny\.model: "):
        load_vpt_policy(model)


NO_MODELS = {
    "text": b"hello",
    "nothing": b"",
    "a list": pickle.dumps([1, 2]),
    "another dict": pickle.dumps({"model": {"args": {}}}),
    "a number inside": pickle.dumps({"model": {"args": {"net": {"args": 3}}}}),
    "longer than any": b"(" * 3_000_000 + b".",
    "marks and nothing else": b"(" * 300_000 + b".",
    "an object of elsewhere": b"P1\nsecond line.",
    "a name without a module": b"c\nsystem\n.",
}


@pytest.mark.parametrize("content", NO_MODELS.values(), ids=NO_MODELS)
def test_vpt_model_file_of_anything_else_is_refused_in_one_line(tmp_path: Path, content: bytes) -> None:
    path = tmp_path / "no.model"
    path.write_bytes(content)
    with pytest.raises(ConfigError, match=r"no\.model") as refused:
        load_vpt_policy(path)
    assert len(str(refused.value).splitlines()) == 1


def test_a_small_model_that_would_be_an_endless_text_is_refused_in_one_line(tmp_path: Path) -> None:
    nested: list[Any] = []
    for _ in range(60):
        nested = [nested, nested]
    path = tmp_path / "bomb.model"
    path.write_bytes(pickle.dumps(model_file(net_kwargs() | {"init_norm_kwargs": {"batch_norm": nested}})))
    with pytest.raises(ConfigError, match="it becomes more than") as refused:
        load_vpt_policy(path)
    assert len(str(refused.value).splitlines()) == 1


def test_a_model_cut_anywhere_is_refused(model: Path) -> None:
    content = model.read_bytes()
    for size in range(0, len(content), 7):
        model.write_bytes(content[:size])
        with pytest.raises(ConfigError, match="is no description of a model"):
            load_vpt_policy(model)


@pytest.mark.parametrize("share", [0.0, 0.001, 0.5, 0.999])
@pytest.mark.parametrize("suffix", [".weights", ".safetensors"])
def test_truncated_weights_are_refused_in_one_line(model: Path, weights: Path, share: float, suffix: str) -> None:
    path = weights.with_suffix(suffix)
    if suffix == ".safetensors":
        save_file(torch.load(weights, weights_only=True), path)
    content = path.read_bytes()
    path.write_bytes(content[: int(share * len(content))])
    with pytest.raises(ConfigError, match=f"tiny{suffix}") as refused:
        load_vpt_policy(model, path)
    assert len(str(refused.value).splitlines()) == 1


def test_weights_of_another_size_are_refused_by_what_differs(tmp_path: Path, weights: Path) -> None:
    path = tmp_path / "wider.model"
    path.write_bytes(pickle.dumps(model_file(net_kwargs(hidden_size=128))))
    words = r"tiny.weights does not fit the network: .* is float32\[128\] here and float32\[64\] there"
    with pytest.raises(ConfigError, match=words) as refused:
        load_vpt_policy(path, weights)
    assert len(str(refused.value)) < 500


def test_load_vpt_policy_of_missing_weights_names_them(model: Path, weights: Path) -> None:
    theirs = torch.load(weights, weights_only=True)
    del theirs["net.final_ln.bias"]
    torch.save(theirs, weights)
    with pytest.raises(ConfigError, match=r"network.norm.bias is float32\[64\] here and missing there"):
        load_vpt_policy(model, weights)


@pytest.mark.parametrize("content", [3, [], {}, {"epoch": 3}, {"state_dict": {"a": 1}}, {3: torch.zeros(1)}])
def test_vpt_weight_file_without_weights_is_refused(model: Path, weights: Path, content: Any) -> None:
    torch.save(content, weights)
    with pytest.raises(ConfigError, match="no weights by name"):
        load_vpt_policy(model, weights)


def test_vpt_value_statistics_of_another_shape_are_refused(weights: Path) -> None:
    theirs = torch.load(weights, weights_only=True)
    theirs["value_head.normalizer.running_mean"] = torch.zeros(2)
    torch.save(theirs, weights)
    with pytest.raises(ConfigError, match="value normaliser is none of VPT's"):
        read_weights(weights)


def test_load_vpt_policy_of_missing_files_names_them(model: Path, tmp_path: Path) -> None:
    for paths in ((tmp_path / "gone.model", None), (model, tmp_path / "gone.weights"), (tmp_path, None)):
        with pytest.raises(ConfigError, match=r"gone|architecture.json"):
            load_vpt_policy(*paths)


NESTED = '{"format": 1, "architecture": ' + "[" * 100_000
PARTIAL = '{"format": 1, "architecture": {"hidden_size": 64, "heads": 4}}'


@pytest.mark.parametrize(
    "content", [NESTED, PARTIAL, "", "3", "{}", '{"format": 2}', '{"format": 1, "architecture": {"blocks": "x"}}']
)
def test_load_vpt_policy_of_a_damaged_architecture_file_is_refused(
    model: Path, weights: Path, tmp_path: Path, content: str
) -> None:
    write_policy(load_vpt_policy(model, weights), tmp_path / "out")
    (tmp_path / "out" / "architecture.json").write_text(content)
    with pytest.raises(ConfigError, match=r"architecture\.json describes no VPT network"):
        load_vpt_policy(tmp_path / "out")
