"""Writes one episode as a GIF."""

from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray
from PIL import Image

from minefleet.config import EnvConfig
from minefleet.envs import make
from minefleet.envs.spaces import from_env_obs, to_env_action
from minefleet.errors import ConfigError
from minefleet.tree import tree_map
from minefleet_actor.inference import Inference

FRAME_MS = 50
LONGEST_FRAMES = 500
SMALLEST_EDGE = 256

Frame = NDArray[np.uint8]


def film(config: EnvConfig, inference: Inference, path: Path, *, seed: int) -> Path:
    """Plays one episode in slot 0 and writes it; long episodes are cut.

    Raises:
        ConfigError: If the environment cannot render.
    """
    env = make(config, render_mode="rgb_array")
    try:
        frames = _play(env, inference, seed)
    finally:
        env.close()
    path.parent.mkdir(parents=True, exist_ok=True)
    images = [_image(frame) for frame in frames]
    images[0].save(path, save_all=True, append_images=images[1:], duration=FRAME_MS, loop=0)
    return path


def _play(env: Any, inference: Inference, seed: int) -> list[Frame]:
    obs, _ = env.reset(seed=seed)
    inference.reset(np.zeros(1, np.intp))
    frames = [_frame(env)]
    while len(frames) < LONGEST_FRAMES:
        batch = tree_map(lambda leaf: np.asarray(leaf)[None], from_env_obs(env.observation_space, obs))
        decision = inference.decide(np.zeros(1, np.intp), batch)
        action = to_env_action(env.action_space, tree_map(lambda leaf: leaf[0], decision.action))
        obs, _, terminated, truncated, _ = env.step(action)
        frames.append(_frame(env))
        if terminated or truncated:
            break
    return frames


def _frame(env: Any) -> Frame:
    frame = env.render()
    if not isinstance(frame, np.ndarray):
        raise ConfigError("this environment cannot render frames: render() returned no array")
    return frame


def _image(frame: Frame) -> Image.Image:
    """Enlarges small frames by whole factors, so that pixels stay sharp."""
    factor = max(1, -(-SMALLEST_EDGE // min(frame.shape[:2])))
    return Image.fromarray(np.repeat(np.repeat(frame, factor, 0), factor, 1))
