"""A look at exported fragments: `minefleet replay export DIR`, then `python examples/replay_notebook.py DIR`.

The cells (`# %%`) run one by one in an editor that knows them. Nothing of minefleet is needed: NumPy and matplotlib.
"""

# %% What there is
import json
import sys
from itertools import groupby, pairwise
from pathlib import Path
from typing import Any

import matplotlib as mpl
import numpy as np

if not hasattr(sys, "ps1"):
    mpl.use("Agg")
import matplotlib.pyplot as plt

Arrays = dict[str, Any]

DIRECTORY = Path(sys.argv[1] if len(sys.argv) > 1 else "export")
index = json.loads((DIRECTORY / "index.json").read_text())
entries = index["fragments"]
streams = {entry["stream"] for entry in entries}
print(f"{len(entries)} fragments, {sum(entry['length'] for entry in entries)} steps of {len(streams)} streams")
if not entries:
    sys.exit("there is nothing to show")


# %% Fragments of a stream that follow each other are one stretch of steps
def load(entry: dict[str, Any]) -> Arrays:
    """The arrays of one fragment that have a value for every step."""
    with np.load(DIRECTORY / entry["file"], allow_pickle=False) as arrays:
        return {name: arrays[name] for name in arrays if not name.startswith(("cut_", "recurrent_state"))}


def stretches() -> list[Arrays]:
    """Contiguous steps, joined over fragments. Entries are sorted; a gap in the sequences starts another stretch."""
    joined = []
    keyed = [(entry["stream"], entry["sequence"] - place, entry) for place, entry in enumerate(entries)]
    for _, group in groupby(keyed, key=lambda item: item[:2]):
        parts = [load(entry) for *_, entry in group]
        joined.append({name: np.concatenate([part[name] for part in parts]) for name in parts[0]})
    return joined


# %% Episodes begin where `first` is set; one is whole when it also ends within the stretch
def episodes(steps: Arrays) -> list[Arrays]:
    """The whole episodes of a stretch."""
    starts = [*np.flatnonzero(steps["first"]), len(steps["first"])]
    cut = [{name: array[low:high] for name, array in steps.items()} for low, high in pairwise(starts)]
    return [episode for episode in cut if episode["terminated"][-1] or episode["truncated"][-1]]


joined = stretches()
whole = [episode for steps in joined for episode in episodes(steps)]
returns = [float(episode["reward"].sum()) for episode in whole]
mean = f", mean return {np.mean(returns):.2f}" if whole else ""
print(f"{len(whole)} whole episodes{mean}")

# %% Returns, and the rewards and values of the longest stretch
longest = max(joined, key=lambda steps: len(steps["reward"]))
images = [name for name in longest if name.startswith("obs") and longest[name].dtype == np.uint8]
images = [name for name in images if longest[name].ndim == 4 and longest[name].shape[-1] in (1, 3)]

figure, axes = plt.subplots(3 + len(images), 1, figsize=(8, 8 + 2 * len(images)), layout="constrained")
axes[0].hist(returns, bins=20)
axes[0].set(title="returns of whole episodes", xlabel="return", ylabel="episodes")
axes[1].plot(longest["reward"])
axes[1].set(title="the longest stretch", ylabel="reward")
axes[2].plot(longest["behaviour_value"], label="when it acted")
axes[2].plot(longest["next_value"], label="of the next step", linestyle=":")
axes[2].set(xlabel="step", ylabel="value")
axes[2].legend(frameon=False)
for axis in axes[1:3]:
    for end in np.flatnonzero(longest["terminated"] | longest["truncated"]):
        axis.axvline(end, color="#d1495b", linewidth=0.6)

# %% Some frames, where observations are images
for axis, name in zip(axes[3:], images, strict=True):
    chosen = np.linspace(0, len(longest[name]) - 1, 8).astype(int)
    axis.imshow(np.concatenate(longest[name][chosen], axis=1).squeeze(), cmap="gray")
    axis.set(title=f"{name}, steps {', '.join(map(str, chosen))}")
    axis.axis("off")

figure.savefig(DIRECTORY / "replay.png", dpi=110)
print(f"drawn: {DIRECTORY / 'replay.png'}")
