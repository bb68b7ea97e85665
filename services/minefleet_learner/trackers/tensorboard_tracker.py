"""Writes TensorBoard's files into `tensorboard/` of the run directory."""

import io
from collections.abc import Mapping
from pathlib import Path

import yaml

from minefleet_learner.trackers.tracker import TrackedRun, Tracker

MAX_FRAMES = 150
MAX_SIDE = 320
"""Pixels. TensorBoard shows a video as a GIF, which is large: some frames are left out, and the others made smaller."""


class TensorBoardTracker(Tracker):
    """Event files; the axis is `env_steps`."""

    def start(self, run: TrackedRun) -> None:
        """Opens one more file, and has TensorBoard drop what earlier ones hold from the checkpoint's step on."""
        from torch.utils.tensorboard import SummaryWriter

        self._writer = SummaryWriter(str(run.directory / "tensorboard"), purge_step=run.step)
        text = yaml.safe_dump(dict(run.config), sort_keys=False)
        self._writer.add_text("config", f"```yaml\n{text}```", run.step)
        for numbers in run.numbers_at_step:
            self.log(numbers, run.step)

    def log(self, numbers: Mapping[str, float], step: int) -> None:
        """Adds the numbers, and writes them at once: a killed learner shall lose none from before its checkpoint."""
        for name, value in numbers.items():
            self._writer.add_scalar(name, value, step)
        self._writer.flush()

    def log_video(self, name: str, path: Path, caption: str, step: int) -> None:
        """Adds a video as a GIF."""
        from tensorboard.compat.proto.summary_pb2 import Summary

        image, (width, height) = as_gif(path)
        shown = Summary.Image(encoded_image_string=image, width=width, height=height, colorspace=3)
        summary = Summary(value=[Summary.Value(tag=name, image=shown)])
        self._writer.file_writer.add_summary(summary, step)  # type: ignore[attr-defined]  # Set when it is made.

    def close(self) -> None:
        """Writes what is buffered."""
        self._writer.close()


def as_gif(path: Path) -> tuple[bytes, tuple[int, int]]:
    """A video as an animated GIF that takes as long, with its width and height in pixels."""
    import av
    from PIL import Image

    with av.open(str(path)) as video:
        (stream,) = video.streams.video
        every = max(1, -(-stream.frames // MAX_FRAMES))
        frames = (frame for number, frame in enumerate(video.decode(stream)) if number % every == 0)
        images = [Image.fromarray(frame.to_ndarray(format="rgb24")) for frame in frames]
        frame_ms = float(1000 * every / (stream.average_rate or 20))
    for image in images:
        image.thumbnail((MAX_SIDE, MAX_SIDE))
    data = io.BytesIO()
    images[0].save(data, "GIF", save_all=True, append_images=images[1:], duration=frame_ms, loop=0)
    return data.getvalue(), images[0].size
