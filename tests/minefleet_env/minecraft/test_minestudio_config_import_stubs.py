"""MineStudio's names where it is not installed. Each case runs in an interpreter of its own: imports are for ever."""

import subprocess
import sys
from pathlib import Path

import pytest
from tests.interpreters import minestudio_python

CLIENTS = Path(__file__).parents[3] / "clients"
LOADS = """
from minestudio.models import load_vpt_policy
from minestudio.models.openai_vpt.body import load_openai_policy
from minestudio.online.rollout.start_manager import start_rolloutmanager
from minestudio.online.trainer.start_trainer import start_trainer
from minestudio.utils import get_compute_device
start_rolloutmanager(None, None, {})
start_trainer(None, None, {}, "text")
"""
SERVED = "from minefleet_env.minecraft.minestudio_config_import_stubs import serve; serve(lambda *paths: paths)\n"


def run(python: str, code: str) -> str:
    """The output of the code, or the last line of its error."""
    command = [python, "-W", "ignore", "-c", f"import sys; sys.path.insert(0, {str(CLIENTS)!r})\n{code}"]
    done = subprocess.run(command, capture_output=True, text=True, check=False)
    return done.stdout.strip() if done.returncode == 0 else done.stderr.strip().splitlines()[-1]


def test_import_stubs_serve_run_configurations_without_minestudio() -> None:
    code = SERVED + LOADS + "print(load_vpt_policy('a', 'b'), load_openai_policy(model_path='a'), get_compute_device())"
    assert run(sys.executable, code) == "('a', 'b') ('a', None) cpu"


def test_import_stubs_are_not_served_unasked() -> None:
    assert "No module named 'minestudio'" in run(sys.executable, "import minestudio.models")


def test_import_stubs_refuse_to_load_a_policy() -> None:
    code = "from minefleet_env.minecraft.minestudio_config_import_stubs import serve; serve()\n"
    code += "from minestudio.models import load_vpt_policy\nload_vpt_policy('a')"
    assert "a policy was asked for in a process of environments" in run(sys.executable, code)


@pytest.mark.parametrize("name", ["MinecraftSim", "callbacks.Cow"])
def test_the_simulator_may_be_named_and_derived_from_but_not_made(name: str) -> None:
    code = f"""{SERVED}
import minestudio.simulator.callbacks
from minestudio.simulator import MinecraftSim
class Mine(minestudio.simulator.{name}):
    pass
print(end="derived: ")
Mine()
"""
    said = run(sys.executable, code)
    assert f"has no MineStudio, of which {name.rpartition('.')[2]} is wanted" in said
    assert "env.python" in said


def test_import_stubs_have_no_unknown_names() -> None:
    assert "cannot import name 'Rocket'" in run(sys.executable, SERVED + "from minestudio.models import Rocket")


@pytest.mark.parametrize(
    ("code", "module"),
    [
        ("from minestudio.models import MinePolicy", "minestudio.models.base_policy"),
        ("from minestudio.models.base_policy import MinePolicy", "minestudio.models.base_policy"),
        ("import minestudio.utils.vpt_lib.util", "minestudio.utils.vpt_lib"),
    ],
)
def test_a_module_that_policies_need_is_refused_with_the_interpreter_that_lacks_it(code: str, module: str) -> None:
    said = run(sys.executable, SERVED + code)
    assert f"ModuleNotFoundError: {sys.executable} has no MineStudio, of which {module} is wanted" in said


def test_import_stubs_keep_an_installed_minestudios_classes_and_replace_its_loader() -> None:
    code = SERVED + LOADS + "from minestudio.models import VPTPolicy, MinePolicy\n"
    code += "from minestudio.models.vpt.body import load_vpt_policy as own\n"
    code += "from minestudio.simulator import MinecraftSim\n"
    code += "print(load_vpt_policy('a'), VPTPolicy.__module__, own.__module__, MinecraftSim.__module__)"
    said = run(minestudio_python(), code)
    assert (
        said.splitlines()[-1]
        == "('a', None) minestudio.models.vpt.body minestudio.models.vpt.body minestudio.simulator.entry"
    )
