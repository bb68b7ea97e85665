"""The preflight without a child process for the policy, for tests that have torch already."""

from minefleet.config import FleetConfig
from minefleet.launch.preflight import Found, answer, check_devices, describe_environment
from minefleet.schema import Schema


def find(config: FleetConfig) -> Found:
    """What `preflight` returns, and raises."""
    check_devices(config)
    described = describe_environment(config)
    return Found.from_dict(described | answer(config, Schema.from_dict(described["schema"])))
