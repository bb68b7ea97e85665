import subprocess
import sys

import pytest

from minefleet_env import interpreter_command

DRAW = "import gymnasium; env = gymnasium.make('CartPole-v1', render_mode='rgb_array'); env.reset(); env.render()"


def test_environment_without_a_screen_draws_without_an_error(monkeypatch: pytest.MonkeyPatch) -> None:
    for name in ("DISPLAY", "WAYLAND_DISPLAY", "SDL_VIDEODRIVER", "XDG_RUNTIME_DIR"):
        monkeypatch.delenv(name, raising=False)
    done = subprocess.run(
        [sys.executable, "-c", DRAW], env=interpreter_command.environment(""), capture_output=True, check=True
    )
    assert done.stderr == b""


def test_environment_with_a_screen_may_use_it(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv("SDL_VIDEODRIVER", raising=False)
    monkeypatch.setenv("DISPLAY", ":0")
    assert "SDL_VIDEODRIVER" not in interpreter_command.environment("")
