import pytest
import torch

from minefleet.core.errors import ConfigError
from minefleet.policies.device import choose_device

COUNT = torch.cuda.device_count()


def test_choose_device_auto_takes_cuda_if_available() -> None:
    assert choose_device("auto", "key").type == ("cuda" if torch.cuda.is_available() else "cpu")


@pytest.mark.parametrize(
    ("name", "message"), [("gpu", "key=gpu is no device"), (f"cuda:{COUNT}", f"key=cuda:{COUNT}: .* sees {COUNT} GPUs")]
)
def test_a_device_that_is_not_there_is_refused_with_its_key(name: str, message: str) -> None:
    with pytest.raises(ConfigError, match=message):
        choose_device(name, "key")
