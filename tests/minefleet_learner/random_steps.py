"""Random steps with random cuts, holes and fragments, in float64, for the tests of estimators."""

from dataclasses import dataclass

import torch
from hypothesis import strategies as st
from torch import Tensor

NAMES = ("reward", "value", "next_value", "terminated", "truncated", "log_ratio")
GARBAGE = float("nan")


@dataclass(frozen=True)
class Steps:
    """[B, T] each. The mask is False behind a random length and in holes."""

    reward: Tensor
    value: Tensor
    next_value: Tensor
    terminated: Tensor
    truncated: Tensor
    log_ratio: Tensor
    mask: Tensor
    duration: Tensor
    """Of 1 to 4, int64."""

    def tensors(self) -> list[Tensor]:
        """All but the mask and the durations, in the order of `NAMES`."""
        return [getattr(self, name) for name in NAMES]

    def spoilt(self) -> "Steps":
        """The same with NaN at padding and behind terminations, where nothing may be read."""
        floats = {
            name: getattr(self, name).masked_fill(~self.mask, GARBAGE)
            for name in ("reward", "value", "next_value", "log_ratio")
        }
        floats["next_value"] = floats["next_value"].masked_fill(self.terminated, GARBAGE)
        return Steps(
            **floats, terminated=self.terminated, truncated=self.truncated, mask=self.mask, duration=self.duration
        )


def random_steps(seed: int, rows: int, length: int, cuts: float = 0.15, holes: float = 0.05) -> Steps:
    """Steps whose episodes end with a chance of `cuts` twice: terminated and truncated, both too."""
    generator = torch.Generator().manual_seed(seed)
    reward, value, next_value, log_ratio = torch.randn(4, rows, length, generator=generator, dtype=torch.float64)
    terminated, truncated = torch.rand(2, rows, length, generator=generator) < cuts
    lengths = torch.randint(1, length + 1, (rows, 1), generator=generator)
    mask = (torch.arange(length) < lengths) & (torch.rand(rows, length, generator=generator) >= holes)
    duration = torch.randint(1, 5, (rows, length), generator=generator)
    return Steps(reward, value, next_value, terminated, truncated, log_ratio, mask, duration)


STEPS = st.builds(
    random_steps,
    seed=st.integers(0, 2**31),
    rows=st.integers(1, 5),
    length=st.integers(1, 20),
    cuts=st.sampled_from([0.0, 0.15, 0.6]),
    holes=st.sampled_from([0.0, 0.1]),
)
SHARE = st.floats(0, 1)


@dataclass(frozen=True)
class Fragmented:
    """One long row, and the same cut into padded fragments [B, T] in any order, some of which are missing."""

    row: Steps
    """[1, L] without padding."""
    names: list[tuple[str, int]]
    fragments: Steps
    places: list[list[int]]
    """Per fragment, the steps of the row."""

    def runs(self) -> list[list[int]]:
        """The steps of the row in runs that no missing fragment interrupts."""
        runs: list[list[int]] = []
        for places in sorted(self.places):
            if runs and runs[-1][-1] + 1 == places[0]:
                runs[-1].extend(places)
            else:
                runs.append(list(places))
        return runs


@st.composite
def fragmented(draw: st.DrawFn) -> Fragmented:
    lengths = draw(st.lists(st.integers(1, 9), min_size=1, max_size=6))
    row = random_steps(draw(st.integers(0, 2**31)), 1, sum(lengths), draw(st.sampled_from([0.0, 0.15])))
    starts = [sum(lengths[:index]) for index in range(len(lengths))]
    kept = draw(st.lists(st.sampled_from(range(len(lengths))), min_size=1, unique=True))
    places = [list(range(starts[index], starts[index] + lengths[index])) for index in kept]
    index = torch.nn.utils.rnn.pad_sequence([torch.tensor(place) for place in places], True, -1)
    mask = index >= 0
    laid = {name: getattr(row, name)[0][index.clamp_min(0)] for name in (*NAMES, "duration")}
    return Fragmented(row, [("stream", 7 + index) for index in kept], Steps(**laid, mask=mask).spoilt(), places)
