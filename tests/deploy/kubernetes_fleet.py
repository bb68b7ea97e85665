"""An overlay as it is built: its resources, its pods, its configuration, and which connections its policies allow."""

import functools
import shutil
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest
from deploy.kubernetes import validate

DIRECTORY = Path(validate.__file__).parent
OVERLAYS = ("gpu", "hosts", "local")
ROLES = ("actor", "learner", "parameters", "replay")
HOST = "host"
"""Pods that run environments for actors; not in every overlay."""
COMPONENT, NAMESPACE_NAME = "app.kubernetes.io/component", "kubernetes.io/metadata.name"
CONTAINER, PREPARE, WATCH = "minefleet", "prepare", "watch"

needs_kubectl = pytest.mark.skipif(shutil.which("kubectl") is None, reason="there is no kubectl; dl.k8s.io has it")
Tree = dict[str, Any]


@dataclass(frozen=True, kw_only=True, slots=True)
class Pod:
    """A pod for a network policy: its labels, and those of its namespace."""

    name: str
    labels: Mapping[str, str]
    namespace: str


@dataclass(frozen=True, kw_only=True)
class Fleet:
    """The resources of one overlay."""

    resources: Sequence[Tree]

    def of_kind(self, *kinds: str) -> list[Tree]:
        """The resources of some kinds."""
        return [resource for resource in self.resources if resource["kind"] in kinds]

    def named(self, kind: str, name: str) -> Tree:
        """One resource."""
        (found,) = [each for each in self.of_kind(kind) if each["metadata"]["name"] == name]
        return found

    def generated(self, name: str) -> dict[str, str]:
        """The data of a ConfigMap whose name ends in a hash of them."""
        (found,) = [each for each in self.of_kind("ConfigMap") if each["metadata"]["name"].startswith(f"{name}-")]
        return dict(found["data"])

    def workload(self, role: str) -> Tree:
        """The workload of a role."""
        (found,) = [each for each in self.of_kind("Deployment", "StatefulSet") if each["metadata"]["name"] == role]
        return found

    def pod(self, role: str) -> Tree:
        """The specification of a role's pods."""
        return dict(self.workload(role)["spec"]["template"]["spec"])

    @property
    def has_hosts(self) -> bool:
        """Whether environments run on hosts."""
        return any(each["metadata"]["name"] == HOST for each in self.of_kind("Deployment"))

    def container(self, role: str, name: str = CONTAINER) -> Tree:
        """The container in which a role runs, or another one of its pods."""
        (found,) = [each for each in self.pod(role)["containers"] if each["name"] == name]
        return dict(found)

    def preparation(self, role: str) -> Tree:
        """The container that writes the run for a role."""
        (found,) = self.pod(role)["initContainers"]
        assert found["name"] == PREPARE
        return dict(found)

    def claims(self, role: str) -> dict[str, Tree]:
        """The claims of a role's own volumes, by name."""
        templates = self.workload(role)["spec"].get("volumeClaimTemplates", [])
        return {template["metadata"]["name"]: template["spec"] for template in templates}

    def settings(self, role: str = "actor") -> list[str]:
        """CONFIG and overrides, as the pods of a role prepare the run."""
        arguments, variables = self.preparation(role)["args"], self.generated("run")
        settings = arguments[arguments.index("prepare") + 1 :]
        given = [filled(each, variables) for each in settings if not each.startswith("--")]
        return given + self.generated("overrides")["overrides"].splitlines()

    def command(self, role: str, **variables: str) -> list[str]:
        """The command line of a role's container."""
        container = self.container(role)
        known = self.generated("run") | variables
        return [filled(each, known) for each in [*container["command"], *container["args"]]]

    def option(self, role: str, name: str) -> str:
        """The value of an option in a role's command line."""
        (value,) = [each.partition("=")[2] for each in self.container(role)["args"] if each.startswith(f"{name}=")]
        return str(value)

    def pods(self) -> list[Pod]:
        """A pod of each role, and a host where there are some."""
        namespace = self.of_kind("Namespace")[0]["metadata"]["name"]
        templates = {role: self.workload(role)["spec"]["template"] for role in (*ROLES, *[HOST] * self.has_hosts)}
        return [
            Pod(name=role, labels=template["metadata"]["labels"], namespace=namespace)
            for role, template in templates.items()
        ]

    def allows(self, caller: Pod, called: Pod, protocol: str, port: int) -> bool:
        """Whether the network policies let one pod connect to another."""
        return self._lets(caller, "egress", "to", called, protocol, port) and self._lets(
            called, "ingress", "from", caller, protocol, port
        )

    def _lets(self, pod: Pod, direction: str, end: str, peer: Pod, protocol: str, port: int) -> bool:
        policies = [
            each["spec"] for each in self.of_kind("NetworkPolicy") if each["metadata"]["namespace"] == pod.namespace
        ]
        here = [each for each in policies if selects(each["podSelector"], pod.labels)]
        governing = [each for each in here if direction.capitalize() in each["policyTypes"]]
        rules = [rule for each in governing for rule in each.get(direction, [])]
        return not governing or any(_fits(rule, end, peer, pod.namespace, protocol, port) for rule in rules)


@functools.cache
def built(overlay: str) -> Fleet:
    """An overlay, built once."""
    return Fleet(resources=validate.build(DIRECTORY / "overlays" / overlay))


def selects(selector: Mapping[str, Any], labels: Mapping[str, str]) -> bool:
    """Whether a label selector picks labels."""
    assert selector.keys() <= {"matchLabels", "matchExpressions"}
    alike = all(labels.get(key) == value for key, value in selector.get("matchLabels", {}).items())
    return alike and all(_holds(expression, labels) for expression in selector.get("matchExpressions", []))


def _holds(expression: Mapping[str, Any], labels: Mapping[str, str]) -> bool:
    assert expression["operator"] == "In"
    return labels.get(expression["key"]) in expression["values"]


def _fits(rule: Mapping[str, Any], end: str, peer: Pod, home: str, protocol: str, port: int) -> bool:
    ports = rule.get("ports")
    if ports is not None and not any(each["protocol"] == protocol and each["port"] == port for each in ports):
        return False
    return end not in rule or any(_is_among(peer, place, home) for place in rule[end])


def _is_among(peer: Pod, place: Mapping[str, Any], home: str) -> bool:
    assert place.keys() <= {"podSelector", "namespaceSelector"}
    if "namespaceSelector" in place:
        there = selects(place["namespaceSelector"], {NAMESPACE_NAME: peer.namespace})
    else:
        there = peer.namespace == home
    return there and selects(place.get("podSelector", {}), peer.labels)


def filled(text: str, variables: Mapping[str, str]) -> str:
    """A text with values in place of `$(NAME)`."""
    for name, value in variables.items():
        text = text.replace(f"$({name})", value)
    return text


def bytes_of(quantity: str) -> int:
    """A quantity in bytes."""
    units = {"Ki": 2**10, "Mi": 2**20, "Gi": 2**30, "Ti": 2**40}
    return int(quantity[:-2]) * units[quantity[-2:]]


def mounts(container: Mapping[str, Any]) -> Iterator[tuple[str, str]]:
    """Path and volume of each mount."""
    for mount in container["volumeMounts"]:
        yield mount["mountPath"], mount["name"]
