"""PPO, and a file of the marks in all that it trains on: `marks.jsonl` in its run directory."""

import json
from typing import Any

import marks  # type: ignore[import-not-found]  # Lies beside the file.
import torch

from minefleet_learner import PPOTrainer
from minefleet_learner.data.batch import Batch, subset

FILE = "marks.jsonl"


class MarkedTrainer(PPOTrainer):
    """Writes a line per fragment: steps, ends, and of each observation its mark and whether it is a first one."""

    def update(self, taken: Any) -> Any:
        """One iteration, its marks first."""
        batch: Batch = taken.batch
        with (self.run.directory / FILE).open("a") as file:
            for row in range(len(batch)):
                file.write(json.dumps(_told(subset(batch, torch.tensor([row])))) + "\n")
        return super().update(taken)


def _told(fragment: Batch) -> dict[str, Any]:
    seen = fragment.seen_mask[0]
    frames, firsts = fragment.seen["image"][0][seen].numpy(), fragment.seen_first[0][seen].tolist()
    read = [marks.read(frame) for frame in frames]
    return {
        "name": fragment.names[0],
        "steps": int(fragment.mask.sum()),
        "terminated": int(fragment.terminated.sum()),
        "seen": list(zip(firsts, read, strict=True)),
    }
