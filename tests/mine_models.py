"""MineStudio's own models, small and with random weights; and one that is shaped as ROCKET-3 is.

A generator names one: `policy_generator(model="groot")`. What cannot be had is replaced, and only that:

| replaced | by |
|---|---|
| `timm.create_model`, a pretrained ViT or EfficientNet | two convolutions with random weights |
| `torchvision.transforms` | the three that the classes use, written out |
| MineCLIP in STEVE-1, 150 million weights | nothing: an instruction is a random embedding |
| GROOT's reference video | one of random pictures, encoded once, as weights that travel with the policy |

The classes come from MineStudio's files beside the interpreter `MINESTUDIO_PYTHON`, whoever imports this.
"""

import importlib
import os
import sys
import tempfile
from collections.abc import Callable
from pathlib import Path
from types import ModuleType, SimpleNamespace
from typing import Any

import numpy as np
import torch
from torch import Tensor, nn

from minefleet.core.schema import Leaf

SIDE = 64
SIZES = {"timesteps": 8, "mem_len": 8}
CLIP = "minestudio.utils.mineclip_lib"
SCALE = 2.0
"""Of STEVE-1's guidance."""
BUTTONS = ("attack", "use", "forward", "jump")
"""Of the previous action, those that the model is shown."""


class Encoder(nn.Module):
    """Stands for one of timm's."""

    def __init__(self, channels: int) -> None:
        super().__init__()
        self.layers = nn.Sequential(nn.Conv2d(channels, 8, 8, 8), nn.ReLU(), nn.Conv2d(8, 16, 2, 2))
        self.feature_info = [{"num_chs": 16}]

    def forward(self, pictures: Tensor) -> list[Tensor]:
        return [self.layers(pictures)]


class Normalize:
    """As torchvision's."""

    def __init__(self, mean: list[float], std: list[float]) -> None:
        self._mean, self._std = (torch.tensor(values).reshape(-1, 1, 1) for values in (mean, std))

    def __call__(self, pictures: Tensor) -> Tensor:
        return (pictures - self._mean.to(pictures)) / self._std.to(pictures)


class Compose:
    """As torchvision's."""

    def __init__(self, parts: list[Callable[[Tensor], Tensor]]) -> None:
        self._parts = parts

    def __call__(self, pictures: Tensor) -> Tensor:
        for part in self._parts:
            pictures = part(pictures)
        return pictures


def models() -> SimpleNamespace:
    """MineStudio's classes."""
    python = Path(os.environ["MINESTUDIO_PYTHON"])
    places = [str(place) for place in python.parents[1].glob("lib/python3*/site-packages")]
    sys.path += [place for place in places if place not in sys.path]
    timm, torchvision = ModuleType("timm"), ModuleType("torchvision")
    vars(timm).update(
        create_model=lambda name, pretrained, features_only, in_chans=3: Encoder(in_chans),
        data=SimpleNamespace(resolve_model_data_config=lambda model: {"mean": [0.5] * 3, "std": [0.25] * 3}),
    )
    transforms = SimpleNamespace(Compose=Compose, Lambda=lambda function: function, Normalize=Normalize)
    vars(torchvision)["transforms"] = transforms
    sys.modules.setdefault("timm", timm)
    sys.modules.setdefault("torchvision", torchvision)
    for name in (CLIP, f"{CLIP}.mineclip"):
        vars(sys.modules.setdefault(name, ModuleType(name)))["MineCLIP"] = nn.Identity
    return SimpleNamespace(
        groot=importlib.import_module("minestudio.models.groot_one.body").GrootPolicy,
        rocket=importlib.import_module("minestudio.models.rocket_one.body").RocketPolicy,
        steve=importlib.import_module("minestudio.models.steve_one.body").SteveOnePolicy,
        base=importlib.import_module("minestudio.models.base_policy").MinePolicy,
        memory=importlib.import_module("minestudio.utils.vpt_lib.util").ResidualRecurrentBlocks,
    )


def groot() -> Any:
    """GROOT, which follows a video."""

    class Groot(models().groot):  # type: ignore[misc]  # Of a package that this interpreter may lack.
        def __init__(self) -> None:
            encoders: dict[str, Any] = {"num_heads": 2}
            super().__init__(
                hiddim=32,
                video_encoder_kwargs=encoders,
                image_encoder_kwargs=encoders,
                decoder_kwargs={"num_heads": 2, "num_layers": 2, **SIZES},
            )
            with torch.no_grad(), tempfile.TemporaryDirectory() as place:
                condition = self.eval().encode_video(video(Path(place) / "demo.mp4"), (SIDE, SIDE))
            for name in ("posterior", "prior"):
                self.register_buffer(name, condition[f"{name}_dist"]["z"])

        def forward(self, input: Any, memory: Any = None) -> Any:  # noqa: A002  # MineStudio's names.
            steps = input["image"].shape[0] * input["image"].shape[1]
            z = {name: {"z": getattr(self, name).expand(steps, -1, -1)} for name in ("posterior", "prior")}
            self.condition_cache = {"": {f"{name}_dist": part for name, part in z.items()}}
            return super().forward({**input, "ref_video_path": ""}, memory)

    return Groot()


def video(path: Path) -> str:
    """Writes a short one."""
    av = importlib.import_module("av")
    with av.open(str(path), "w") as container:
        stream = container.add_stream("mpeg4", rate=20)
        stream.width = stream.height = SIDE
        for picture in np.random.default_rng(0).integers(0, 256, (8, SIDE, SIDE, 3), np.uint8):
            container.mux(stream.encode(av.VideoFrame.from_ndarray(picture, format="rgb24")))
        container.mux(stream.encode())
    return str(path)


def rocket() -> Any:
    """ROCKET-1, which is shown the mask of an object."""
    return models().rocket(hiddim=32, num_heads=2, num_layers=2, nucleus_prob=None, **SIZES)


def steve() -> Any:
    """STEVE-1, under one instruction, and with guidance: it remembers for itself with the instruction, and without."""

    class Steve(models().steve):  # type: ignore[misc]  # Likewise.
        def __init__(self) -> None:
            network = {
                "attention_heads": 2,
                "attention_memory_size": 16,
                "hidsize": 32,
                "img_shape": [SIDE, SIDE, 3],
                "impala_chans": [4, 8, 8],
                "impala_kwargs": {"post_pool_groups": 1},
                "init_norm_kwargs": {"batch_norm": False, "group_norm_groups": 1},
                "n_recurrence_layers": 2,
                "recurrence_type": "transformer",
                "timesteps": 8,
            }
            super().__init__(policy_kwargs=network)
            self.register_buffer("instruction", torch.randn(1, 512))

        def initial_state(self, batch_size: int) -> Any:
            return super().initial_state({"cond_scale": SCALE}, batch_size)

        def forward(self, input: Any, state_in: Any = None) -> Any:  # noqa: A002  # MineStudio's names.
            condition = {"cond_scale": SCALE, "mineclip_embeds": self.instruction}
            return super().forward({"image": input["image"], "condition": condition}, state_in)

    return Steve()


def rocket3() -> Any:
    """Shaped as ROCKET-3: two pictures, the mask of an object in the second, how to treat it, and the last action."""
    found = models()

    class Rocket3(found.base):  # type: ignore[misc, name-defined]  # Likewise.
        def __init__(self) -> None:
            super().__init__(hiddim=32)
            self.backbone = Encoder(3).requires_grad_(False)
            self.interaction = nn.Embedding(10, 32)
            self.last_action = nn.Linear(len(BUTTONS) + 2, 32)
            self.pooling = nn.Linear(16 + 16 + 1, 32)
            self.recurrent = found.memory(
                hidsize=32,
                recurrence_type="transformer",
                attention_heads=2,
                attention_memory_size=16,
                attention_mask_style="clipped_causal",
                timesteps=8,
                n_block=2,
            )

        def initial_state(self, batch_size: int) -> Any:
            return self.recurrent.initial_state(batch_size)

        def forward(self, input: Any, state_in: Any = None) -> Any:  # noqa: A002  # MineStudio's names.
            batch, steps = input["image"].shape[:2]
            other = input["cross_view"]
            views = [self._seen(pictures) for pictures in (input["image"], other["image"])]
            mask = other["mask"].float().mean((2, 3)).unsqueeze(-1)
            last = input["env_prev_action"]
            pressed = torch.stack([last[name].float() for name in BUTTONS], -1)
            said = self.last_action(torch.cat([pressed, last["camera"].float() / 180], -1))
            features = self.pooling(torch.cat([*views, mask], -1)) + said + self.interaction(other["obj_id"] + 1)
            first = torch.zeros(batch, steps, dtype=torch.bool, device=features.device)
            features, state_out = self.recurrent(features, first, state_in)
            return {"pi_logits": self.pi_head(features), "vpred": self.value_head(features)}, state_out

        def _seen(self, pictures: Tensor) -> Any:
            flat = pictures.flatten(0, 1).permute(0, 3, 1, 2) / 255
            return self.backbone(flat)[-1].mean((2, 3)).reshape(*pictures.shape[:2], -1)

    return Rocket3()


IMAGE = Leaf(kind="box", shape=(SIDE, SIDE, 3), dtype="uint8", low=0, high=255)
MASK = Leaf(kind="box", shape=(SIDE, SIDE), dtype="uint8", low=0, high=1)
OBJECT = Leaf(kind="box", shape=(), dtype="int64", low=-1, high=8)
PRESSED = Leaf(kind="discrete", shape=(), dtype="int64", categories=(2,))
TURNED = Leaf(kind="box", shape=(2,), dtype="float32", low=-180, high=180)
OBSERVED: dict[str, Any] = {
    "groot": {"image": IMAGE},
    "rocket": {"image": IMAGE, "segment": {"obj_mask": MASK, "obj_id": OBJECT}},
    "steve": {"image": IMAGE},
    "rocket3": {
        "image": IMAGE,
        "cross_view": {"image": IMAGE, "mask": MASK, "obj_id": OBJECT},
        "env_prev_action": {**dict.fromkeys(BUTTONS, PRESSED), "camera": TURNED},
    },
}
"""The observations of each model: the schema of `mine_tasks`."""

MODELS = {"groot": groot, "rocket": rocket, "steve": steve, "rocket3": rocket3}


def policy_generator(model: str) -> Any:
    """The model, with the same random weights for whoever makes it."""
    torch.manual_seed(0)
    return MODELS[model]()
