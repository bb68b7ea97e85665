"""Measures the time that `policy.frozen_encoder` saves the learner, and the bytes that it stores.

python benchmarks/frozen_encoder.py [--rounds 3]

A vision transformer of ViT-S/16's size, random and frozen, under two trained layers and a GRU, sees pictures of
224 x 224. A pass is forward and backward over fragments, from pictures and from stored outputs in turn. The transformer
gives its first token, 384 numbers, or all 197.
"""

import argparse
import time
from statistics import median

import torch
from torch import Tensor, nn

from harness.report import aligned, line
from minefleet.core.schema import Leaf, Schema
from minefleet.core.tree import Tree, flatten, tree_map
from minefleet.policies import ActorCritic, stored_encoder_outputs
from minefleet.policies.random_observation import BATCH, STEPS, random_observation

SIDE, PATCH, WIDTH = 224, 16, 384
SCHEMA = Schema(
    obs={"image": Leaf(kind="box", shape=(SIDE, SIDE, 3), dtype="uint8", low=0, high=255)},
    action=Leaf(kind="discrete", shape=(), dtype="int64", categories=(10,)),
)
REPEATS = 8
"""Of the steps of a random observation, in a fragment."""


class Vit(nn.Module):
    def __init__(self, tokens: int) -> None:
        super().__init__()
        self.tokens = tokens
        self.patches = nn.Conv2d(3, WIDTH, PATCH, PATCH)
        self.first = nn.Parameter(torch.zeros(1, 1, WIDTH))
        layer = nn.TransformerEncoderLayer(WIDTH, 6, 4 * WIDTH, 0.0, "gelu", batch_first=True, norm_first=True)
        self.layers = nn.TransformerEncoder(layer, 12, enable_nested_tensor=False)

    def forward(self, pictures: Tensor) -> Tensor:
        patches = self.patches(pictures).flatten(2).transpose(1, 2)
        out: Tensor = self.layers(torch.cat([self.first.expand(len(patches), -1, -1), patches], 1))
        return out[:, : self.tokens]


class Encoder(nn.Module):
    def __init__(self, tokens: int) -> None:
        super().__init__()
        self.vit = Vit(tokens).requires_grad_(False)
        self.dense = nn.Sequential(nn.Linear(WIDTH, 512), nn.GELU(), nn.Linear(512, 256))

    def forward(self, obs: Tree) -> Tensor:
        pictures = obs["image"].permute(0, 3, 1, 2).float() / 255
        out: Tensor = self.dense(self.vit(pictures).mean(1))
        return out


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--rounds", type=int, default=3)
    arguments = parser.parse_args()
    rows = [measure(tokens, arguments.rounds) for tokens in (1, 197)]
    columns = ["outputs", "ms a step from pictures", "from outputs", "bytes a step of pictures", "of outputs"]
    print(aligned([columns, *([str(cell) for cell in row] for row in rows)]))
    for tokens, pictures_ms, outputs_ms, *_ in rows:
        print(line("frozen-encoder", f"{tokens}-tokens", "x", pictures_ms / outputs_ms))


def measure(tokens: int, rounds: int) -> tuple[int, float, float, int, int]:
    """Medians of a pass over a fragment of pictures, and over what is stored of it."""
    torch.manual_seed(0)
    policy = ActorCritic(SCHEMA, Encoder(tokens), features=256, gru_size=256)
    stored_encoder_outputs.freeze(policy, policy, "encoder.vit", SCHEMA)
    seen = random_observation(SCHEMA, torch.Generator().manual_seed(0))
    with torch.no_grad():
        output, _ = policy(seen, policy.initial_state(BATCH), torch.zeros(BATCH, STEPS, dtype=torch.bool))
    assert policy.frozen_encoder is not None
    stored = policy.frozen_encoder.stored(seen, output.encoded)
    times: dict[str, list[float]] = {"pictures": [], "outputs": []}
    for _ in range(rounds):
        for name, obs in (("pictures", seen), ("outputs", stored)):
            times[name].append(1e3 * step_s(policy, tree_map(lambda leaf: leaf.repeat_interleave(REPEATS, 1), obs)))
    sizes = (sum(leaf[0, 0].nbytes for leaf in flatten(obs).values()) for obs in (seen, stored))
    return tokens, *(round(median(each), 3) for each in times.values()), *sizes


def step_s(policy: ActorCritic, obs: Tree) -> float:
    """Seconds a step of a forward and a backward pass."""
    first = torch.zeros(BATCH, STEPS * REPEATS, dtype=torch.bool)
    start = time.perf_counter()
    output, _ = policy(obs, policy.initial_state(BATCH), first)
    (policy.action_head.entropy(output.params).sum() + output.value.sum()).backward()
    return (time.perf_counter() - start) / first.numel()


if __name__ == "__main__":
    main()
