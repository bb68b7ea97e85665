"""The Kubernetes manifests, as kubectl builds them, against schemas and against what the roles really do."""

import itertools
import json
import math
import os
import re
import shutil
import subprocess
import sys
from pathlib import Path

import pytest
import yaml
from deploy.kubernetes import validate
from prometheus_client import CollectorRegistry
from tests.deploy.kubernetes_fleet import (
    COMPONENT,
    DIRECTORY,
    HOST,
    OVERLAYS,
    ROLES,
    WATCH,
    Fleet,
    Pod,
    built,
    bytes_of,
    mounts,
    needs_kubectl,
    selects,
)
from tests.deploy.programs import program

from minefleet.config import FleetConfig
from minefleet.config.load import load
from minefleet.config.replay_partitioning import spread
from minefleet.launch.placement import ONE_THREAD_EACH
from minefleet.runs.run_yaml import RUN_FILE, read_run
from minefleet_learner.metrics.prometheus import LearnerMetrics
from minefleet_runtime.http_endpoint import ProbeServer
from minefleet_runtime.role_status import StatusTracker

GRPC, METRICS, DNS, RENDEZVOUS = 7000, 9100, 53, 29500
PORTS = (GRPC, METRICS, DNS, RENDEZVOUS, 40000)
DRAIN_MARGIN_S = 20
"""Time that a role needs beside its drain: to close its store, or its environments."""
PROMETHEUS = Pod(name="prometheus", labels={"app.kubernetes.io/name": "prometheus"}, namespace="monitoring")
NAMESAKE = Pod(name="namesake", labels={COMPONENT: "actor", "app.kubernetes.io/name": "prometheus"}, namespace="other")
NEIGHBOUR = Pod(name="neighbour", labels={"app.kubernetes.io/name": "grafana"}, namespace="monitoring")
STRAY = Pod(name="stray", labels={}, namespace="minefleet")
NAME_SERVER = Pod(name="dns", labels={"k8s-app": "kube-dns"}, namespace="kube-system")

pytestmark = needs_kubectl


@pytest.fixture(params=OVERLAYS)
def fleet(request: pytest.FixtureRequest) -> Fleet:
    return built(request.param)


def config_of(fleet: Fleet) -> FleetConfig:
    config, *overrides = fleet.settings()
    return spread(load(config, overrides))


def copy_with(place: Path, file: str, old: str, new: str) -> Path:
    """A copy of the manifests, in which one text is another."""
    shutil.copytree(DIRECTORY, place)
    text = (place / file).read_text()
    assert old in text
    (place / file).write_text(text.replace(old, new))
    return place


def test_kubernetes_overlays_are_those_under_test() -> None:
    assert tuple(overlay.name for overlay in validate.overlays()) == OVERLAYS


@pytest.mark.parametrize("overlay", OVERLAYS)
def test_kubernetes_overlay_is_valid(overlay: str) -> None:
    assert list(validate.faults_of(DIRECTORY / "overlays" / overlay)) == []


@pytest.mark.parametrize(
    ("file", "old", "new", "words"),
    [
        ("base/disruption.yaml", "kind: PodDisruptionBudget", "kind: PodDisruptionBuget", "has no such kind"),
        ("base/disruption.yaml", "policy/v1", "policy/v3", "has no such kind"),
        ("base/pod.yaml", "readinessProbe", "readinessProb", "'readinessProb' was unexpected"),
        ("base/network.yaml", "podSelector: {}", "podSelecter: {}", "'podSelector' is a required property"),
        ("base/pod.yaml", "  fsGroup: 10001", "  fsgroup: 10001", "'fsgroup' was unexpected"),
        ("base/replay.yaml", "storage: 16Gi", "storage: 16GB", "is no quantity"),
        ("components/keda/actor.yaml", "pollingInterval", "poolingInterval", "'poolingInterval' was unexpected"),
        ("components/keda/actor.yaml", "serverAddress:", "serverAdress:", "'serverAdress' was unexpected"),
        ("components/keda/actor.yaml", "keda.sh/v1alpha1", "keda.sh/v1", "has no such kind"),
        ("components/prometheus/pods.yaml", "port: metrics", "prot: metrics", "'prot' was unexpected"),
        ("overlays/gpu/kustomization.yaml", "images:", "image:", "kubectl does not build it"),
    ],
)
def test_kubernetes_check_finds_a_typo_in_a_manifest(tmp_path: Path, file: str, old: str, new: str, words: str) -> None:
    copied = copy_with(tmp_path / "kubernetes", file, old, new)
    assert any(words in fault for fault in validate.faults_of(copied / "overlays" / "gpu"))


def test_kubernetes_check_fails_at_a_fault_of_any_overlay(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    copied = copy_with(tmp_path / "kubernetes", "components/keda/actor.yaml", "ScaledObject", "ScaledObjekt")
    assert validate.main(copied) == 1
    assert capsys.readouterr().out.splitlines() == [
        "gpu: 1 fault(s)",
        f"  ScaledObjekt actor: keda.sh/v1alpha1 has no such kind, nor has schemas/ (Kubernetes {validate.OLDEST})",
        "hosts: valid",
        "local: valid",
    ]


def test_component_of_snapshots_restores_before_a_run_is_prepared(tmp_path: Path) -> None:
    shutil.copytree(DIRECTORY, tmp_path / "kubernetes")
    copied = tmp_path / "kubernetes" / "overlays" / "spot"
    copied.mkdir()
    lines = ["kind: Kustomization", "resources: [../local]", "components: [../../components/snapshots]"]
    (copied / "kustomization.yaml").write_text("\n".join(lines))
    assert list(validate.faults_of(copied)) == []
    fleet = Fleet(resources=validate.build(copied))
    restoring, preparing = fleet.pod("learner")["initContainers"]
    assert (restoring["name"], preparing["name"]) == ("restore", "prepare")
    assert preparing == built("local").preparation("learner")
    assert restoring["envFrom"] == fleet.container("learner")["envFrom"]
    assert restoring["securityContext"] == preparing["securityContext"]
    (tmp_path / "overrides").write_text("seed=3\nupload_config.target=s3://bucket/a\n")
    (script,) = (each.replace("/config", str(tmp_path)) for each in restoring["args"])
    run = {"RUN": "default", "PATH": os.environ["PATH"]}
    told = subprocess.run(
        ["bash", "-c", f"minefleet() {{ echo $@; }}; {script}"], check=True, env=run, capture_output=True, text=True
    )
    assert told.stdout == "restore s3://bucket/a /runs/default --if-needed\n"


def test_pods_have_no_privileges_that_they_do_not_need(fleet: Fleet) -> None:
    assert fleet.of_kind("Namespace")[0]["metadata"]["labels"]["pod-security.kubernetes.io/enforce"] == "restricted"
    for role in ROLES:
        pod = fleet.pod(role)
        assert pod["automountServiceAccountToken"] is False
        assert not pod.keys() & {"hostNetwork", "hostPID", "hostIPC", "serviceAccountName"}
        allowed = pod["securityContext"]
        assert (allowed["runAsNonRoot"], allowed["runAsUser"], allowed["fsGroup"]) == (True, 10001, 10001)
        assert allowed["seccompProfile"] == {"type": "RuntimeDefault"}
        for container in (*pod["initContainers"], *pod["containers"]):
            assert container["securityContext"] == {
                "allowPrivilegeEscalation": False,
                "readOnlyRootFilesystem": True,
                "capabilities": {"drop": ["ALL"]},
            }


def test_host_pods_have_no_privileges_that_they_do_not_need_and_run_as_actors_do() -> None:
    fleet = built("hosts")
    pod, actors = fleet.pod(HOST), fleet.pod("actor")
    alike = ("automountServiceAccountToken", "enableServiceLinks", "shareProcessNamespace")
    assert {key: pod[key] for key in alike} == {key: actors[key] for key in alike}
    assert pod["securityContext"].items() <= actors["securityContext"].items()
    assert not pod.keys() & {"hostNetwork", "hostPID", "hostIPC", "serviceAccountName"}
    container, actor = fleet.container(HOST), fleet.container("actor")
    for key in ("image", "env", "envFrom", "securityContext", "startupProbe", "livenessProbe", "readinessProbe"):
        assert container[key] == actor[key], key
    secrets = [volume["secret"]["secretName"] for volume in pod["volumes"] if "secret" in volume]
    assert secrets == ["minefleet-host"]
    assert {name for _, name in mounts(container)} == {volume["name"] for volume in pod["volumes"]}


def test_hosts_have_the_environments_of_the_run_and_worlds_for_every_slot(tmp_path: Path) -> None:
    fleet = built("hosts")
    config = config_of(fleet)
    words = words_of_host(fleet, tmp_path)
    assert words[0] == "host"
    actor = f"{fleet.named('Service', 'actor')['metadata']['name']}:{GRPC}"
    assert words[-4:] == ["--actor", actor, "--metrics-address", "0.0.0.0:9100"]
    host = load(words[1], words[2:-4])
    assert host.env == config.env
    slots, worlds = (each.rollout_config.worker_config.num_envs for each in (config, host))
    assert config.rollout_config.worker_config.hosted
    assert fleet.workload(HOST)["spec"]["replicas"] * worlds == slots
    assert (f"{host.services.security.certificates}/host", "certs") in mounts(fleet.container(HOST))


def words_of_host(fleet: Fleet, place: Path) -> list[str]:
    """The arguments that `minefleet` gets in a host's container."""
    command = place / "minefleet"
    command.write_text("#!/bin/sh\nprintf '%s\\n' \"$@\"\n")
    command.chmod(0o755)
    (place / "overrides").write_text(fleet.generated("overrides")["overrides"])
    container = fleet.container(HOST)
    (script,) = container["args"]
    variables = fleet.generated("run") | {"PATH": f"{place}:/usr/bin:/bin"}
    script = script.replace("/config", str(place))
    return subprocess.check_output([*container["command"], script], env=variables, text=True).splitlines()


def test_hosts_find_actors_by_a_service_of_theirs() -> None:
    fleet = built("hosts")
    service = fleet.named("Service", "actor")["spec"]
    assert (service["clusterIP"], service["publishNotReadyAddresses"]) == ("None", True)
    assert service["selector"] == {COMPONENT: "actor"}
    assert {port["port"]: port["targetPort"] for port in service["ports"]} == {GRPC: "grpc"}


def test_the_page_reads_the_learners_volumes_and_is_served_within_its_pod(fleet: Fleet) -> None:
    container = fleet.container("learner", WATCH)
    assert "ports" not in container
    arguments = [*container["command"], *container["args"]]
    assert arguments[:3] == ["minefleet", "watch", "/runs"]
    assert "--listen=127.0.0.1:8800" in arguments
    assert all(mount["readOnly"] for mount in container["volumeMounts"])
    of_learner = {name for place, name in mounts(fleet.container("learner")) if place.startswith("/runs")}
    assert {name for _, name in mounts(container)} == of_learner


def test_a_role_has_its_own_certificate_and_no_other(fleet: Fleet) -> None:
    folder = config_of(fleet).services.security.certificates
    for role in ROLES:
        secrets = [volume["secret"]["secretName"] for volume in fleet.pod(role)["volumes"] if "secret" in volume]
        assert secrets == [f"minefleet-{role}"]
        assert (f"{folder}/{role}", "certs") in mounts(fleet.container(role))
        assert "certs" not in [name for _, name in mounts(fleet.preparation(role))]


def test_every_mount_of_a_pod_has_a_volume(fleet: Fleet) -> None:
    for role in ROLES:
        known = {volume["name"] for volume in fleet.pod(role)["volumes"]} | fleet.claims(role).keys()
        used = {name for each in (fleet.container(role), fleet.preparation(role)) for _, name in mounts(each)}
        assert used == known


def test_runs_and_tmp_of_a_pod_are_volumes_of_its_own(fleet: Fleet) -> None:
    for role in ROLES:
        own = fleet.claims(role).keys() | {
            volume["name"] for volume in fleet.pod(role)["volumes"] if "emptyDir" in volume
        }
        places = dict(mounts(fleet.container(role)))
        assert {places["/runs"], places["/tmp"]} <= own
        for claim in fleet.claims(role).values():
            assert claim["accessModes"] == ["ReadWriteOnce"]


def test_services_have_the_ports_at_which_callers_find_the_roles(fleet: Fleet) -> None:
    services = config_of(fleet).services
    endpoints = {"parameters": [services.parameters], "learner": [services.learner], "replay": services.replay}
    for role, found in endpoints.items():
        service = fleet.named("Service", role)["spec"]
        assert service["clusterIP"] == "None"
        assert service["publishNotReadyAddresses"] is True
        assert fleet.workload(role)["spec"]["serviceName"] == role
        ports = {port["port"]: port["targetPort"] for port in service["ports"]}
        for index, endpoint in enumerate(found):
            host, port = endpoint.address.split(":")
            assert host in ((role, f"{role}-0.{role}") if len(found) == 1 else (f"{role}-{index}.{role}",))
            assert ports[int(port)] == "grpc"


def test_roles_listen_on_the_ports_of_their_containers(fleet: Fleet) -> None:
    services = config_of(fleet).services
    listening = {
        "actor": [(services.actor.address, services.actor.metrics_address)],
        "learner": [(services.learner.listen, services.learner.metrics_address)],
        "parameters": [(services.parameters.listen, services.parameters.metrics_address)],
        "replay": [(shard.listen, shard.metrics_address) for shard in services.replay],
    }
    for role, places in listening.items():
        ports = {port["name"]: f"0.0.0.0:{port['containerPort']}" for port in fleet.container(role)["ports"]}
        assert set(places) == {(ports["grpc"], ports["metrics"])}


def test_replay_has_a_pod_for_each_shard(fleet: Fleet) -> None:
    assert fleet.workload("replay")["spec"]["replicas"] == len(config_of(fleet).services.replay)
    assert "--index=1" in fleet.command("replay", POD_INDEX="1")


def test_probes_of_pods_ask_paths_that_roles_answer(fleet: Fleet) -> None:
    with ProbeServer("127.0.0.1", 0, StatusTracker(), CollectorRegistry()) as server:
        for role in ROLES:
            container = fleet.container(role)
            probes = {name: container[f"{name}Probe"]["httpGet"] for name in ("startup", "liveness", "readiness")}
            assert {probe["port"] for probe in probes.values()} == {"metrics"}
            assert server.answer(probes["startup"]["path"], "")[2] == b"alive\n"
            assert server.answer(probes["liveness"]["path"], "")[2] == b"alive\n"
            assert server.answer(probes["readiness"]["path"], "")[2] == b"starting\n"


def test_network_policies_allow_only_connections_that_the_fleet_needs(fleet: Fleet) -> None:
    outsiders = (PROMETHEUS, NAMESAKE, NEIGHBOUR, NAME_SERVER)
    pods, outside = (*fleet.pods(), STRAY, *outsiders), {pod.name for pod in outsiders}
    allowed = {
        (caller.name, called.name, protocol, port)
        for caller, called in itertools.product(pods, pods)
        for protocol, port in itertools.product(("TCP", "UDP"), PORTS)
        if fleet.allows(caller, called, protocol, port) and not {caller.name, called.name} <= outside
    }
    ring = {(caller, called, "TCP", GRPC) for caller in ("actor", "learner") for called in ("replay", "parameters")}
    ring |= {(HOST, "actor", "TCP", GRPC)} if fleet.has_hosts else set()
    own = (*(pod.name for pod in fleet.pods()), STRAY.name)
    metrics = {(PROMETHEUS.name, name, "TCP", METRICS) for name in own}
    names = {(name, NAME_SERVER.name, protocol, DNS) for name in own for protocol in ("TCP", "UDP")}
    several = config_of(fleet).train_config.num_workers > 1
    ranks = {("learner", "learner", protocol, port) for protocol in ("TCP", "UDP") for port in PORTS if several}
    assert allowed == ring | metrics | names | ranks


def test_grace_period_of_pods_covers_the_drain(fleet: Fleet) -> None:
    needed_s = config_of(fleet).services.drain_s + DRAIN_MARGIN_S
    for role in ROLES:
        assert fleet.pod(role)["terminationGracePeriodSeconds"] >= needed_s


def test_kubernetes_selectors_pick_the_pods_that_they_are_for(fleet: Fleet) -> None:
    labels = {pod.name: pod.labels for pod in fleet.pods()}
    for role in ROLES:
        assert fleet.workload(role)["spec"]["selector"] == {"matchLabels": {COMPONENT: role}}
    for role in ("learner", "parameters", "replay"):
        chosen = {"matchLabels": fleet.named("Service", role)["spec"]["selector"]}
        assert [name for name in ROLES if selects(chosen, labels[name])] == [role]
    budgets = {budget["metadata"]["name"]: budget["spec"] for budget in fleet.of_kind("PodDisruptionBudget")}
    picked = {
        name: [role for role in ROLES if selects(spec["selector"], labels[role])] for name, spec in budgets.items()
    }
    assert picked == {"actor": ["actor"], "ring": ["learner", "parameters", "replay"]}


def test_pods_thread_variables_are_those_of_train(fleet: Fleet) -> None:
    for role in ROLES:
        values = {each["name"]: each.get("value") for each in fleet.container(role)["env"]}
        assert values.items() >= ONE_THREAD_EACH.items()


def test_volume_of_replays_pod_has_room_for_max_bytes(fleet: Fleet) -> None:
    config = config_of(fleet)
    share = config.rollout_config.replay_buffer_config.max_bytes / len(config.services.replay)
    assert bytes_of(fleet.claims("replay")["runs"]["resources"]["requests"]["storage"]) >= 1.25 * share


@pytest.mark.parametrize("overlay", OVERLAYS)
def test_every_pod_prepares_the_same_run(overlay: str, tmp_path: Path) -> None:
    fleet = built(overlay)
    preparations = [fleet.preparation(role) for role in ROLES]
    assert all(
        (each["command"], each["args"]) == (preparations[0]["command"], preparations[0]["args"])
        for each in preparations
    )
    assert len({each["image"] for each in preparations} | {fleet.container("actor")["image"]}) == 1
    (tmp_path / "overrides").write_text(fleet.generated("overrides")["overrides"].replace("/runs", str(tmp_path)))
    run = fleet.generated("run")
    command = [*preparations[0]["command"], *preparations[0]["args"]]
    for old, new in (
        ("/config", str(tmp_path)),
        ("/runs", str(tmp_path)),
        ("$(CONFIG)", run["CONFIG"]),
        ("$(RUN)", run["RUN"]),
    ):
        command = [each.replace(old, new) for each in command]
    place = command.index("minefleet")
    command[place : place + 1] = [sys.executable, "-m", "minefleet"]
    for _ in range(2):
        done = subprocess.run(command, capture_output=True, text=True, check=False, stdin=subprocess.DEVNULL)
        assert done.returncode == 0, done.stderr
    prepared = read_run(tmp_path / run["RUN"])
    assert prepared.config.services == config_of(fleet).services
    assert (tmp_path / run["RUN"] / RUN_FILE).exists()


def test_roles_run_where_the_run_is_prepared(fleet: Fleet) -> None:
    for role in ROLES:
        (place,) = [each for each in fleet.preparation(role)["args"] if each.startswith("--run-dir=")]
        assert place in fleet.container(role)["args"]


def test_a_pod_for_each_rank_and_all_see_the_checkpoints() -> None:
    fleet = built("gpu")
    config = config_of(fleet).train_config
    pods, per_pod = fleet.workload("learner")["spec"]["replicas"], int(fleet.option("learner", "--nproc-per-node"))
    assert config.num_workers == pods * per_pod > 1
    assert int(fleet.option("learner", "--nnodes")) == pods
    assert fleet.option("learner", "--master-addr") == "learner-0.learner"
    assert "--node-rank=1" in fleet.command("learner", POD_INDEX="1")
    assert fleet.container("learner")["resources"]["limits"]["nvidia.com/gpu"] == per_pod
    volumes = {volume["name"]: volume for volume in fleet.pod("learner")["volumes"]}
    (shared,) = [
        place for place, name in mounts(fleet.container("learner")) if "persistentVolumeClaim" in volumes.get(name, {})
    ]
    assert str(config.save_path).startswith(f"{shared}/")
    claim = fleet.named("PersistentVolumeClaim", "learner-shared")
    assert volumes["shared"]["persistentVolumeClaim"]["claimName"] == claim["metadata"]["name"]
    assert claim["spec"]["accessModes"] == ["ReadWriteMany"]


def test_startup_probe_of_ranks_outlasts_their_rendezvous() -> None:
    from torch.distributed.elastic.rendezvous import static_tcp_rendezvous

    probe = built("gpu").container("learner")["startupProbe"]
    assert probe["periodSeconds"] * probe["failureThreshold"] > static_tcp_rendezvous._default_timeout_seconds


def test_pods_of_the_gpu_overlay_choose_the_device_automatically() -> None:
    config = config_of(built("gpu"))
    assert (config.train_config.device, config.rollout_config.worker_config.device) == ("auto", "auto")


def test_actors_are_scaled_on_a_metric_that_the_learner_exports() -> None:
    fleet = built("gpu")
    scaled = fleet.named("ScaledObject", "actor")["spec"]
    (trigger,) = scaled["triggers"]
    registry = CollectorRegistry()
    LearnerMetrics(registry)
    exported = {metric.name for metric in registry.collect()}
    named = re.findall(r"minefleet_\w+", trigger["metadata"]["query"])
    assert named
    assert exported.issuperset(named)
    assert f'namespace="{fleet.of_kind("Namespace")[0]["metadata"]["name"]}"' in trigger["metadata"]["query"]
    assert scaled["scaleTargetRef"]["name"] == fleet.workload("actor")["metadata"]["name"]
    assert "replicas" not in fleet.workload("actor")["spec"]


@pytest.mark.parametrize(
    ("share", "metric"), [(0.0, 1.0), (0.2, 1.25), (0.5, 2.0), (1.0, 8.0), (math.nan, None), (None, None)]
)
def test_autoscalers_query_is_how_many_times_the_actors_keep_the_learner_busy(
    tmp_path: Path, share: float | None, metric: float | None
) -> None:
    (trigger,) = built("gpu").named("ScaledObject", "actor")["spec"]["triggers"]
    assert float(trigger["metadata"]["threshold"]) == 1.25
    series = 'minefleet_learner_wait_ratio{namespace="minefleet", pod="learner-%d"}'
    known = [{"series": series % 0, "values": _constant(share)}, {"series": series % 1, "values": _constant(math.nan)}]
    case = {"expr": trigger["metadata"]["query"], "eval_time": "10m"}
    samples = [] if metric is None else [{"labels": "{}", "value": metric}]
    group = {"interval": "30s", "input_series": [] if share is None else known}
    tests = {"rule_files": [], "tests": [{**group, "promql_expr_test": [{**case, "exp_samples": samples}]}]}
    (tmp_path / "tests.yaml").write_text(yaml.safe_dump(tests))
    done = subprocess.run(
        [program("promtool"), "test", "rules", str(tmp_path / "tests.yaml")],
        capture_output=True,
        text=True,
        check=False,
    )
    assert done.returncode == 0, done.stdout + done.stderr


def _constant(value: float | None) -> str:
    """As promtool has it, whose `x` adds."""
    return " ".join(["NaN" if value is None or math.isnan(value) else f"{value}"] * 21)


def test_kubernetes_prometheus_scrapes_every_role() -> None:
    fleet = built("gpu")
    monitor = fleet.named("PodMonitor", "minefleet")["spec"]
    (endpoint,) = monitor["podMetricsEndpoints"]
    for pod in fleet.pods():
        assert selects(monitor["selector"], pod.labels)
        assert pod.labels[monitor["jobLabel"]] == pod.name
        ports = {port["name"]: port["containerPort"] for port in fleet.container(pod.name)["ports"]}
        assert ports[endpoint["port"]] == METRICS


def test_kubernetes_schemas_leave_no_field_open() -> None:
    for path in validate.SCHEMAS.glob("*.json"):
        assert list(open_objects(json.loads(path.read_text()))) == []


def open_objects(schema: object) -> list[object]:
    """Objects that take any field."""
    if isinstance(schema, list):
        return [found for each in schema for found in open_objects(each)]
    if not isinstance(schema, dict):
        return []
    is_open = schema.get("type") == "object" and "additionalProperties" not in schema
    return [schema] * is_open + [found for each in schema.values() for found in open_objects(each)]
