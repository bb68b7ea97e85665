"""Access is checked on real connections: with certificates, with tokens, and with neither."""

import subprocess
import threading
from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager, contextmanager
from dataclasses import replace
from datetime import UTC, datetime, timedelta
from functools import partial
from pathlib import Path
from typing import Any

import grpc
import pytest
from cryptography import x509
from grpc_health.v1 import health_pb2, health_pb2_grpc
from prometheus_client import CollectorRegistry

from minefleet.config.security import SecurityConfig
from minefleet.core.errors import AuthError, ConfigError, StrangerError
from minefleet.rpc import certificates
from minefleet.rpc.channel import connect
from minefleet.rpc.credentials import ROLES, Credentials, KeyPair, read_credentials
from minefleet.rpc.replay_client import ReplayClient
from minefleet.v1 import replay_service_pb2, replay_service_pb2_grpc, status_service_pb2, status_service_pb2_grpc
from minefleet_runtime.address_reachability import findable, is_loopback
from minefleet_runtime.grpc_server.access import ALLOWED
from minefleet_runtime.grpc_server.serve import serving
from minefleet_runtime.role_context import RoleContext

TIMEOUT_S = 60.0
TOKEN = "a-token-of-many-letters"
PROTOS = Path(__file__).parents[3] / "protos" / "minefleet" / "v1"

Serving = Callable[[Credentials], AbstractContextManager[str]]


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """An authority, and a certificate for each role."""
    path = tmp_path_factory.mktemp("certificates") / "ca"
    certificates.init(path)
    return path


@pytest.fixture
def entered() -> list[str]:
    """The calls that have reached a handler."""
    return []


@pytest.fixture
def served(context: RoleContext, entered: list[str]) -> Serving:
    """Serves replay's methods on a port, for callers who show what the credentials ask for."""

    class Servicer(replay_service_pb2_grpc.ReplayServiceServicer):
        def Lease(self, request: Any, context: Any) -> Any:  # noqa: N802  # gRPC names it.
            entered.append("Lease")
            return replay_service_pb2.LeaseResponse()

        def Append(self, request_iterator: Any, context: Any) -> Any:  # noqa: N802  # gRPC names it.
            entered.append("Append")
            return replay_service_pb2.AppendResponse()

        def Read(self, request: Any, context: Any) -> Iterator[Any]:  # noqa: N802  # gRPC names it.
            entered.append("Read")
            yield replay_service_pb2.ReadResponse()

    @contextmanager
    def serve(credentials: Credentials) -> Iterator[str]:
        def register(server: grpc.Server) -> None:
            replay_service_pb2_grpc.add_ReplayServiceServicer_to_server(Servicer(), server)  # type: ignore[abstract]

        with serving(replace(context, credentials=credentials), "127.0.0.1:0", register) as address:
            yield address

    return serve


def of(folder: Path, role: str) -> Credentials:
    return read_credentials(SecurityConfig(certificates=str(folder)), role)


def with_token(tmp_path: Path, token: str = TOKEN) -> Credentials:
    path = tmp_path / f"token-{len(token)}"
    path.write_text(f"{token}\n")
    return read_credentials(SecurityConfig(token_file=str(path)), "replay")


def calls(channel: grpc.Channel) -> dict[str, Callable[[], object]]:
    stub = replay_service_pb2_grpc.ReplayServiceStub(channel)
    status = status_service_pb2_grpc.StatusServiceStub(channel)
    return {
        "Lease": lambda: stub.Lease(replay_service_pb2.LeaseRequest(), timeout=TIMEOUT_S),
        "Append": lambda: stub.Append(iter([]), timeout=TIMEOUT_S),
        "Read": lambda: list(stub.Read(replay_service_pb2.ReadRequest(), timeout=TIMEOUT_S)),
        "Describe": lambda: status.Describe(status_service_pb2.DescribeRequest(), timeout=TIMEOUT_S),
    }


def code_of(call: Callable[[], object]) -> grpc.StatusCode:
    """The status code of a call."""
    try:
        call()
    except grpc.RpcError as error:
        return error.code()
    return grpc.StatusCode.OK


def codes(address: str, credentials: Credentials, peer: str = "replay") -> dict[str, str]:
    with connect(address, peer, credentials) as channel:
        return {name: code_of(call).name for name, call in calls(channel).items()}


def all_of(code: str) -> dict[str, str]:
    return dict.fromkeys(("Lease", "Append", "Read", "Describe"), code)


@pytest.mark.parametrize(
    ("role", "denied"),
    [
        ("learner", {"Append"}),
        ("actor", {"Lease", "Read"}),
        ("operator", {"Lease", "Append", "Read"}),
        ("parameters", {"Lease", "Append", "Read"}),
        ("replay", {"Lease", "Append", "Read"}),
    ],
)
def test_role_certificate_allows_only_the_calls_of_its_role(
    served: Serving, folder: Path, entered: list[str], role: str, denied: set[str]
) -> None:
    with served(of(folder, "replay")) as address:
        found = codes(address, of(folder, role))
    assert found == all_of("OK") | dict.fromkeys(denied, "PERMISSION_DENIED")
    assert set(entered) == {"Lease", "Append", "Read"} - denied


def test_caller_without_a_valid_certificate_of_the_fleets_authority_reaches_nothing(
    served: Serving, folder: Path, entered: list[str], tmp_path: Path
) -> None:
    certificates.init(tmp_path / "other")
    own, other = of(folder, "learner"), of(tmp_path / "other", "learner")
    assert own.pair is not None and other.pair is not None
    mixed = Credentials(pair=replace(other.pair, authority=own.pair.authority))
    with served(of(folder, "replay")) as address:
        for credentials in (Credentials(), other, mixed, expired(folder, tmp_path)):
            assert codes(address, credentials) == all_of("UNAVAILABLE")
        bare = grpc.secure_channel(
            address,
            grpc.ssl_channel_credentials(own.pair.authority),
            options=(("grpc.ssl_target_name_override", "replay.minefleet"),),
        )
        with bare as channel:
            assert code_of(calls(channel)["Lease"]) is grpc.StatusCode.UNAVAILABLE
        assert entered == []
        assert codes(address, own)["Lease"] == "OK"


def expired(folder: Path, tmp_path: Path) -> Credentials:
    """A learner's certificate of the right authority, which was valid until a minute ago."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(certificates, "CLOCK_SKEW", timedelta(days=2, minutes=1))
        patch.setattr(certificates, "timedelta", lambda days: timedelta(days=days, minutes=-1) - timedelta(days=days))
        out = certificates.issue(folder, "learner", out=tmp_path / "expired", days=1)
    certificate = (out / "cert.pem").read_bytes()
    assert x509.load_pem_x509_certificate(certificate).not_valid_after_utc < datetime.now(UTC)
    with pytest.raises(ConfigError, match=r"is valid from .*, not now: `minefleet certs issue` makes a new one"):
        read_credentials(SecurityConfig(certificates=str(renamed(out, "learner"))), "learner")
    pair = of(folder, "learner").pair
    assert pair is not None
    return Credentials(pair=KeyPair(pair.authority, certificate, (out / "key.pem").read_bytes()))


def renamed(out: Path, role: str) -> Path:
    """The folder that holds a role's folder."""
    target = out.parent / "of-roles" / role
    target.parent.mkdir(exist_ok=True)
    if not target.exists():
        target.symlink_to(out)
    return target.parent


def test_caller_does_not_talk_to_a_server_of_another_role(served: Serving, folder: Path, entered: list[str]) -> None:
    with served(of(folder, "actor")) as address:
        assert codes(address, of(folder, "learner"), peer="replay") == all_of("UNAVAILABLE")
    assert entered == []


def test_a_certificate_reaches_no_server_without_one(served: Serving, folder: Path) -> None:
    with served(Credentials()) as address:
        assert codes(address, of(folder, "learner")) == all_of("UNAVAILABLE")


@pytest.mark.parametrize("token", ["a-token-of-many-letter", "another-token-of-many", TOKEN + "s"])
def test_a_wrong_token_or_none_reaches_nothing(served: Serving, entered: list[str], tmp_path: Path, token: str) -> None:
    with served(with_token(tmp_path)) as address:
        assert codes(address, Credentials()) == all_of("UNAUTHENTICATED")
        assert codes(address, with_token(tmp_path, token)) == all_of("UNAUTHENTICATED")
        assert entered == []
        assert codes(address, with_token(tmp_path)) == all_of("OK")


def test_caller_with_a_wrong_token_does_not_try_again(served: Serving, tmp_path: Path) -> None:
    wrong = with_token(tmp_path, "another-token-of-many-letters")
    with (
        served(with_token(tmp_path)) as address,
        ReplayClient(address, credentials=wrong) as client,
        pytest.raises(StrangerError, match=r"no token, or a wrong one: give the fleet's as services\.security"),
    ):
        client.reserve(1, [])


def test_caller_without_permission_does_not_try_again(served: Serving, folder: Path) -> None:
    with (
        served(of(folder, "replay")) as address,
        ReplayClient(address, credentials=of(folder, "parameters")) as client,
        pytest.raises(AuthError, match=r"the certificate is for parameters, which may not call .*Reserve"),
    ):
        client.reserve(1, [])


@pytest.mark.parametrize(
    "shown",
    [
        [("authorization", "")],
        [("authorization", "Bearer")],
        [("authorization", "Bearer ")],
        [("authorization", TOKEN)],
        [("authorization", f"bearer {TOKEN}")],
        [("authorization", f"Bearer  {TOKEN}")],
        [("authorization-bin", f"Bearer {TOKEN}".encode())],
        [("x-authorization", f"Bearer {TOKEN}")],
        [("authorization", f"Bearer {TOKEN}")] * 2,
        [("authorization", "Bearer nothing"), ("authorization", f"Bearer {TOKEN}")],
    ],
)
def test_an_empty_token_or_what_only_looks_like_one_reaches_nothing(
    served: Serving, entered: list[str], tmp_path: Path, shown: list[tuple[str, str | bytes]]
) -> None:
    with served(with_token(tmp_path)) as address, grpc.insecure_channel(address) as channel:
        lease = replay_service_pb2_grpc.ReplayServiceStub(channel).Lease
        call = partial(lease, replay_service_pb2.LeaseRequest(), timeout=TIMEOUT_S, metadata=tuple(shown))
        assert code_of(call) is grpc.StatusCode.UNAUTHENTICATED
    assert entered == []


METHODS = ["ReplayService/Lease", "ReplayService/Append", "ReplayService/Read", "StatusService/Describe"]


@pytest.mark.parametrize("method", METHODS)
def test_strangers_are_turned_away_before_they_have_sent_anything(
    served: Serving, entered: list[str], tmp_path: Path, method: str
) -> None:
    over = threading.Event()

    def never() -> Iterator[bytes]:
        over.wait()
        yield b""

    with served(with_token(tmp_path)) as address:
        with grpc.insecure_channel(address) as channel:
            call: Any = channel.stream_unary(f"/minefleet.v1.{method}")
            calls = [call.future(never(), timeout=TIMEOUT_S) for _ in range(100)]
            assert {call.code() for call in calls} == {grpc.StatusCode.UNAUTHENTICATED}
            over.set()
        assert entered == []
        assert codes(address, with_token(tmp_path)) == all_of("OK")


def test_certificates_and_a_token_are_both_asked_for(served: Serving, folder: Path, tmp_path: Path) -> None:
    both = replace(of(folder, "learner"), token=TOKEN)
    with served(replace(of(folder, "replay"), token=TOKEN)) as address:
        assert codes(address, of(folder, "learner")) == all_of("UNAUTHENTICATED")
        assert codes(address, with_token(tmp_path)) == all_of("UNAVAILABLE")
        assert codes(address, both)["Lease"] == "OK"


def test_health_check_needs_no_token(served: Serving, tmp_path: Path) -> None:
    with served(with_token(tmp_path)) as address, grpc.insecure_channel(address) as channel:
        answer = health_pb2_grpc.HealthStub(channel).Check(health_pb2.HealthCheckRequest(), timeout=TIMEOUT_S)
    assert answer.status == health_pb2.HealthCheckResponse.SERVING


def test_every_method_of_the_contract_says_who_may_call_it() -> None:
    methods = set()
    for path in PROTOS.glob("*_service.proto"):
        words = [line.split() for line in path.read_text().splitlines()]
        service = next(line[1] for line in words if line[:1] == ["service"])
        methods |= {f"minefleet.v1.{service}/{line[1].partition('(')[0]}" for line in words if line[:1] == ["rpc"]}
    assert set(ALLOWED) == methods
    assert all(roles <= set(ROLES) for roles in ALLOWED.values())


@pytest.mark.parametrize(
    ("host", "is_ours"),
    [("127.0.0.1", True), ("localhost", True), ("[::1]", True), ("0.0.0.0", False), ("[::]", False)],
)
def test_is_loopback_knows_addresses_of_this_machine(host: str, is_ours: bool) -> None:
    assert is_loopback(host) is is_ours


@pytest.mark.parametrize("host", ["0.0.0.0", "[::]"])
def test_role_that_listens_everywhere_is_found_by_this_hosts_address(
    host: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("socket.gethostbyname", lambda _: "10.0.0.7")
    assert findable(f"{host}:7000") == "10.0.0.7:7000"
    assert findable("replay:7000") == "replay:7000"


def test_role_that_listens_elsewhere_says_where_callers_look(context: RoleContext) -> None:
    with serving(replace(context, listen="127.0.0.1:0"), "replay:7000") as address:
        assert address == "replay:7000"
    again = replace(context, listen="0.0.0.0:0", registry=CollectorRegistry())
    refused = pytest.raises(ConfigError, match=r"services\.replay\.listen=0\.0\.0\.0:0 lets other machines call")
    with refused, serving(again, "replay:7000"):
        pass


def test_an_open_address_is_refused_unless_callers_are_asked_or_it_is_wanted(
    context: RoleContext, folder: Path, tmp_path: Path
) -> None:
    refused = pytest.raises(ConfigError, match=r"services\.replay.*lets other machines call.*minefleet certs init")
    with refused, serving(context, "0.0.0.0:0"):
        pass
    for credentials in (of(folder, "replay"), with_token(tmp_path), Credentials(insecure=True)):
        with serving(replace(context, credentials=credentials, registry=CollectorRegistry()), "0.0.0.0:0") as address:
            assert address


def test_new_certificates_of_an_authority_that_is_kept_go_with_older_ones(
    served: Serving, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    certificates.init(tmp_path, keep_authority=True)
    older = of(tmp_path, "replay")
    with pytest.raises(ConfigError, match="has an authority already"):
        certificates.init(tmp_path)
    certificates.init(tmp_path, keep_authority=True)
    newer = of(tmp_path, "learner")
    with served(older) as address:
        assert codes(address, newer)["Lease"] == "OK"


def test_certificate_keys_are_private_and_a_mismatch_is_named(folder: Path, tmp_path: Path) -> None:
    for path in (folder / "ca.key", *folder.glob("*/key.pem")):
        assert path.stat().st_mode & 0o777 == 0o600
    wrong = tmp_path / "wrong"
    wrong.mkdir()
    (wrong / "learner").symlink_to(folder / "actor")
    with pytest.raises(ConfigError, match=r"cert\.pem is for actor, and this is the learner"):
        of(wrong, "learner")
    with pytest.raises(ConfigError, match=r"cannot read .*nowhere/learner/ca\.pem: No such file"):
        of(tmp_path / "nowhere", "learner")
    for name, part in (
        ("cert.pem", "holds no certificate"),
        ("key.pem", "holds no certificate"),
        ("ca.pem", "is empty"),
    ):
        damaged = certificates.issue(folder, "replay", out=tmp_path / name / "replay")
        (damaged / name).write_bytes(b"" if name == "ca.pem" else b"damaged")
        with pytest.raises(ConfigError, match=part):
            of(damaged.parent, "replay")
    swapped = certificates.issue(folder, "replay", out=tmp_path / "swapped" / "replay")
    (swapped / "key.pem").write_bytes((folder / "replay" / "key.pem").read_bytes())
    with pytest.raises(ConfigError, match=r"key\.pem is not the key of"):
        of(swapped.parent, "replay")
    foreign = certificates.init(tmp_path / "foreign")[ROLES.index("replay")]
    (foreign / "ca.pem").write_bytes((folder / "ca.pem").read_bytes())
    with pytest.raises(ConfigError, match=r"is not signed by"):
        of(foreign.parent, "replay")


@pytest.mark.parametrize("content", ["", "short", "two words of many letters", "ümlaute-in-einem-wort"])
def test_token_file_without_a_valid_token_is_refused(tmp_path: Path, content: str) -> None:
    path = tmp_path / "token"
    path.write_text(content)
    with pytest.raises(ConfigError, match=r"token (is empty|must hold one word)"):
        read_credentials(SecurityConfig(token_file=str(path)), "actor")


def test_openssl_verifies_our_certificates(folder: Path) -> None:
    for role in ROLES:
        command = [
            "openssl",
            "verify",
            "-x509_strict",
            "-CAfile",
            str(folder / "ca.pem"),
            str(folder / role / "cert.pem"),
        ]
        done = subprocess.run(command, capture_output=True, text=True, check=False)
        assert done.returncode == 0, done.stderr
