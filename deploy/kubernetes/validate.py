"""Builds every overlay with kubectl and validates what comes out, offline: `python deploy/kubernetes/validate.py`.

Kubernetes' own kinds are held against its schemas, of the oldest and of the newest version that is known here, custom
kinds against those in `schemas/`. A field or a kind that no schema has is a fault.
"""

import json
import re
import subprocess
import sys
from collections.abc import Iterable, Iterator, Mapping
from pathlib import Path
from typing import Any

import jsonschema
import kubernetes_validate
import yaml

HERE = Path(__file__).parent
SCHEMAS = HERE / "schemas"
OLDEST = "1.29"
"""Version of Kubernetes from which on this is meant to work."""

QUANTITY = re.compile(r"[0-9]+(\.[0-9]+)?(m|[kMGTPE]|[KMGTPE]i)?")

Resource = dict[str, Any]


class BuildError(Exception):
    """An overlay that kubectl does not build."""


def main(directory: Path = HERE) -> int:
    """Prints what is wrong with each overlay; returns the exit code."""
    faulty = False
    for overlay in overlays(directory):
        found = list(faults_of(overlay))
        faulty |= bool(found)
        print(f"{overlay.name}: {len(found)} fault(s)" if found else f"{overlay.name}: valid")
        for fault in found:
            print(f"  {fault}")
    return 1 if faulty else 0


def overlays(directory: Path = HERE) -> list[Path]:
    """The overlays, by name."""
    return sorted(path.parent for path in directory.glob("overlays/*/kustomization.yaml"))


def faults_of(overlay: Path) -> Iterator[str]:
    """The faults of an overlay, one line each."""
    try:
        resources = build(overlay)
    except BuildError as error:
        yield f"kubectl does not build it: {error}"
        return
    for resource in resources:
        name = f"{resource.get('kind')} {resource.get('metadata', {}).get('name')}"
        yield from (f"{name}: {fault}" for fault in faults_in(resource))


def build(overlay: Path) -> list[Resource]:
    """The resources that `kubectl apply -k` would send.

    Raises:
        BuildError: Says what kubectl says.
    """
    command = ["kubectl", "kustomize", str(overlay)]
    done = subprocess.run(command, capture_output=True, text=True, check=False)
    if done.returncode or done.stderr:
        raise BuildError(done.stderr.strip())
    return list(yaml.safe_load_all(done.stdout))


def faults_in(resource: Resource) -> Iterator[str]:
    """The faults of one resource."""
    schema = _own_schema(resource)
    yield from _faults_by(schema, resource) if schema is not None else _faults_by_kubernetes(resource)
    for place, quantity in _quantities(resource):
        if not QUANTITY.fullmatch(str(quantity)):
            yield f"{place}: {quantity!r} is no quantity"


def _faults_by(schema: Mapping[str, Any], resource: Resource) -> Iterator[str]:
    for error in jsonschema.Draft202012Validator(schema).iter_errors(resource):
        yield _line(error)


def _faults_by_kubernetes(resource: Resource) -> Iterator[str]:
    """Those that the first version finds which finds any."""
    for version in (OLDEST, kubernetes_validate.latest_version()):
        try:
            kubernetes_validate.validate(resource, version, strict=True)
        except kubernetes_validate.ValidationError as error:
            yield f"{_line(error)} (Kubernetes {version})"
        except kubernetes_validate.SchemaNotFoundError:
            yield f"{resource['apiVersion']} has no such kind, nor has {SCHEMAS.name}/ (Kubernetes {version})"
        else:
            continue
        return


def _own_schema(resource: Resource) -> Mapping[str, Any] | None:
    """The schema of a custom kind; None where there is none here."""
    group, _, version = resource["apiVersion"].partition("/")
    path = SCHEMAS / f"{resource['kind'].lower()}-{group}-{version}.json"
    return dict(json.loads(path.read_text())) if path.exists() else None


def _quantities(tree: Any, place: str = "") -> Iterator[tuple[str, Any]]:
    """Everything that is an amount of something, which Kubernetes' schemas take to be any text."""
    for key, value in _items(tree):
        here = f"{place}.{key}".removeprefix(".")
        if key in ("requests", "limits"):
            yield from ((f"{here}.{name}", amount) for name, amount in value.items())
        elif key == "sizeLimit":
            yield here, value
        else:
            yield from _quantities(value, here)


def _items(tree: Any) -> Iterable[tuple[Any, Any]]:
    if isinstance(tree, dict):
        return tree.items()
    return enumerate(tree) if isinstance(tree, list) else ()


def _line(error: jsonschema.ValidationError) -> str:
    place = ".".join(str(part) for part in error.absolute_path)
    return f"{place or 'the top'}: {error.message.partition(chr(10))[0]}"


if __name__ == "__main__":
    sys.exit(main())
