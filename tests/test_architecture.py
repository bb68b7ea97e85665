"""The arrows between packages, as far as import-linter cannot see them: what a fresh interpreter has loaded."""

import ast
import subprocess
import sys

import pytest

HEAVY = ("torch", "gymnasium", "matplotlib")
LIGHT_MODULES = (
    "minefleet",
    "minefleet.cli",
    "minefleet.rpc.replay_client",
    "minefleet.rpc.parameters_client",
    "minefleet.runs.run_yaml",
    "minefleet.local_training",
    "minefleet.monitoring.run_reader",
    "minefleet_runtime.main",
    "minefleet_runtime.grpc_server.serve",
    "minefleet_replay.service",
    "minefleet_replay.__main__",
    "minefleet_parameters.service",
    "minefleet_parameters.__main__",
    "minefleet_learner.__main__",
    "minefleet_actor.__main__",
)


@pytest.mark.parametrize("module", LIGHT_MODULES)
def test_light_module_loads_nothing_heavy(module: str) -> None:
    code = f"import sys, {module}; print([name for name in {HEAVY} if name in sys.modules])"
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert done.stdout.strip() == "[]"


RESTRICTED = ["clients/minefleet/policies/vpt/pickles.py", "clients/minefleet/policies/vpt/weight_files.py"]
"""They read VPT's files, as weights alone and as plain data: tests/minefleet/policies/vpt/test_weight_files.py."""


def test_product_code_pickles_in_the_restricted_modules_only() -> None:
    code = (
        "import pathlib, re, sys\n"
        "files = [p for root in ('clients', 'services') for p in pathlib.Path(root).rglob('*.py')]\n"
        "assert len(files) > 50\n"
        "print([str(p) for p in files if re.search(r'import pickle\\b|torch\\.(load|save)\\(', p.read_text())])"
    )
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert sorted(ast.literal_eval(done.stdout)) == RESTRICTED
