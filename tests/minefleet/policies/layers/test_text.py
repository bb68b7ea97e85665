"""Texts become features that depend on every byte of them, and on nothing behind their end."""

import numpy as np
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from torch import Tensor

from minefleet.config import PolicyConfig
from minefleet.core.schema import Leaf
from minefleet.policies import decode_text
from minefleet.policies.layers.encoders import encoder
from minefleet.policies.layers.text import TextFeatures

LONGEST = 40


def rows(*texts: str, longest: int = LONGEST) -> Tensor:
    made = np.zeros((len(texts), longest), np.uint8)
    for row, text in zip(made, texts, strict=True):
        data = text.encode()
        row[: len(data)] = np.frombuffer(data, np.uint8)
    return torch.from_numpy(made)


@pytest.fixture
def features() -> TextFeatures:
    torch.manual_seed(0)
    return TextFeatures(LONGEST)


@given(text=st.text(st.characters(exclude_characters="\0", exclude_categories=["Cs"]), max_size=10))
def test_a_text_is_read_back_from_its_bytes(text: str) -> None:
    row = rows(text)[0]
    assert decode_text(row) == decode_text(row.numpy()) == text


def test_a_text_that_was_cut_in_a_character_can_be_read() -> None:
    assert decode_text(np.frombuffer("né".encode()[:2], np.uint8)) == "n\N{REPLACEMENT CHARACTER}"


def test_texts_that_repeat_have_the_features_and_gradients_that_they_have_one_by_one(features: TextFeatures) -> None:
    texts = rows("go left", "", "go right", "go left", "")
    found = {}
    for name, module in (("repeated", features), ("alone", features._features)):
        features.zero_grad()
        output = module(texts)
        output.square().sum().backward()
        found[name] = (output.detach(), [each.grad.clone() for each in features.parameters() if each.grad is not None])
    torch.testing.assert_close(found["repeated"], found["alone"])


@given(text=st.text("abc ", max_size=12), at=st.integers(0, 11), seed=st.integers(0, 100))
def test_text_features_depend_on_every_byte_and_not_on_the_padding(text: str, at: int, seed: int) -> None:
    torch.manual_seed(seed)
    module = TextFeatures(LONGEST)
    with torch.no_grad():
        once = module(rows(text))
        # The same weights with less room: what is behind the text is not seen.
        shorter = TextFeatures(12)
        shorter.load_state_dict(module.state_dict() | {"place": module.place[:12]})
        torch.testing.assert_close(shorter(rows(text, longest=12)), once, rtol=1e-5, atol=1e-5)
        if at < len(text):
            changed = text[:at] + "z" + text[at + 1 :]
            assert (module(rows(changed)) - once).abs().max() > 1e-4


def test_texts_of_the_same_words_in_another_order_differ(features: TextFeatures) -> None:
    one, other = features(rows("put the sword on the chest", "put the chest on the sword"))
    assert (one - other).abs().max() > 0.1


def test_a_text_of_nothing_is_zeros(features: TextFeatures) -> None:
    assert (features(rows("", "x"))[0] == 0).all()
    assert (features(rows("", "x"))[1] != 0).any()


def test_text_features_gradients_reach_only_the_bytes_and_places_of_a_text(features: TextFeatures) -> None:
    features(rows("ab", "")).sum().backward()
    assert features.byte.weight.grad is not None and features.place.grad is not None
    reached = features.byte.weight.grad.abs().sum(1).nonzero().flatten().tolist()
    assert reached == [ord("a"), ord("b")]
    assert features.place.grad.abs().sum(1).nonzero().flatten().tolist() == [0, 1]


def test_encoder_takes_texts_beside_other_observations() -> None:
    tree = {
        "instruction": Leaf(kind="text", shape=(LONGEST,), dtype="uint8"),
        "x": Leaf(kind="box", shape=(2,), dtype="float32"),
    }
    torch.manual_seed(0)
    module = encoder(tree, PolicyConfig(hidden_size=16))
    out = module({"instruction": rows("left", "right", ""), "x": torch.zeros(3, 2)})
    assert out.shape == (3, 16)
    assert (out[0] != out[1]).any() and (out[1] != out[2]).any()
