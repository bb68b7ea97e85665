import threading
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import ExitStack, closing
from pathlib import Path
from typing import Any

import grpc
import numpy as np
import pytest
from numpy.typing import NDArray

from minefleet.core.errors import ContractError, FencedError, NotFoundError, RejectedError
from minefleet.rpc.channel import connect
from minefleet.rpc.message_pieces import PIECE_BYTES
from minefleet.rpc.parameters_client import ParametersClient
from minefleet.rpc.weights.bfloat16 import as_fetched
from minefleet.rpc.weights.manifest import describe
from minefleet.v1 import parameters_service_pb2 as pb
from minefleet.v1 import parameters_service_pb2_grpc, weights_pb2

Weights = dict[str, NDArray[Any]]
MakeWeights = Callable[..., Weights]
Parameters = Any
"""The `Parameters` of conftest.py, which cannot be imported here."""


@pytest.fixture
def clients() -> Iterator[ExitStack]:
    with ExitStack() as stack:
        yield stack


@pytest.fixture
def learner(parameters: Parameters, clients: ExitStack) -> ParametersClient:
    client = connected(parameters, clients)
    client.open_epoch("run")
    return client


def connected(parameters: Parameters, clients: ExitStack, **arguments: Any) -> ParametersClient:
    client: ParametersClient = parameters.client(**arguments)
    clients.callback(client.close)
    return client


def stub_for(address: str, clients: ExitStack) -> parameters_service_pb2_grpc.ParametersServiceStub:
    return parameters_service_pb2_grpc.ParametersServiceStub(clients.enter_context(connect(address)))


def assert_same(ours: Weights, theirs: Weights) -> None:
    assert list(ours) == list(theirs)
    for name, array in ours.items():
        np.testing.assert_array_equal(array, theirs[name], strict=True)


def test_actors_fetch_what_the_learner_published(
    parameters: Parameters, clients: ExitStack, learner: ParametersClient, make_weights: MakeWeights
) -> None:
    weights = make_weights(size_bytes=3 * PIECE_BYTES)
    assert learner.publish(weights, iteration=7) == 1
    info, fetched = connected(parameters, clients).fetch()
    assert_same(fetched, weights)
    assert (info.version, info.epoch, info.run_id, info.iteration) == (1, 1, "run", 7)


def test_a_version_keeps_the_settings_that_it_was_published_with(
    parameters: Parameters, clients: ExitStack, learner: ParametersClient, make_weights: MakeWeights
) -> None:
    actor, weights = connected(parameters, clients), make_weights()
    for iteration, settings in enumerate(('{"a": 1}', "")):
        learner.publish(weights, iteration=iteration, settings=settings)
        assert next(actor.watch()).settings == actor.fetch()[0].settings == settings
    assert [one.settings for one in actor.versions()] == ['{"a": 1}', ""]


def test_unchanged_tensors_travel_neither_way_again(
    parameters: Parameters, clients: ExitStack, learner: ParametersClient, make_weights: MakeWeights
) -> None:
    frozen = {f"frozen.{index}": np.full(90_000, index, np.float32) for index in range(9)}
    actor = connected(parameters, clients)
    for seed in range(3):
        weights = frozen | {"trained": np.full(90_000, 100 + seed, np.float32)}
        learner.publish(weights, iteration=seed)
        assert_same(actor.fetch()[1], weights)
    one_tensor = 90_000 * 4
    assert parameters.figure("publish_bytes_total") == 12 * one_tensor
    assert parameters.figure("fetch_bytes_total") == 12 * one_tensor
    assert parameters.figure("publish_saved_bytes_total") == 18 * one_tensor
    assert parameters.figure("fetch_saved_bytes_total") == 18 * one_tensor
    assert parameters.figure("stored_bytes") == 12 * one_tensor


MIXED: Weights = {
    "frozen.weight": np.linspace(-3, 3, 90_000, dtype=np.float32),
    "trained.weight": np.linspace(0, 1 / 3, 90_000, dtype=np.float32).reshape(300, 300),
    "exact.weight": np.full(1_000, 1 / 3, np.float32),
    "huge.weight": np.full(1_000, 3.4e38, np.float32),
    "norm.mean": np.array(1 / 3),
    "steps": np.array(7),
    "flags": np.array([True, False]),
    "zeros": np.zeros(4, np.float32),
    "zero_counts": np.zeros(4, np.uint16),
}
ROUNDED = {"frozen.weight", "trained.weight", "huge.weight", "zeros"}


def test_weights_that_travel_as_bfloat16_arrive_rounded_and_all_others_exactly(
    parameters: Parameters, clients: ExitStack
) -> None:
    learner = connected(parameters, clients, rounded=ROUNDED)
    learner.open_epoch("run")
    learner.publish(MIXED, iteration=1)
    _, fetched = connected(parameters, clients).fetch()
    assert_same(fetched, as_fetched(MIXED, ROUNDED))
    assert not any(array.flags.writeable for array in fetched.values())
    for name in ("frozen.weight", "trained.weight"):
        error = np.abs(fetched[name] - MIXED[name])
        assert error.max() > 0
        assert (error <= 2**-8 * np.abs(MIXED[name])).all()
    for name in MIXED.keys() - {"frozen.weight", "trained.weight"}:
        np.testing.assert_array_equal(fetched[name], MIXED[name])
    exact_bytes = 4_000 + 4_000 + 8 + 8 + 2
    assert parameters.figure("publish_bytes_total") == 180_000 * 2 + 8 + exact_bytes
    assert parameters.figure("fetch_bytes_total") == parameters.figure("publish_bytes_total")


def test_rounded_tensors_that_did_not_change_travel_neither_way_again(
    parameters: Parameters, clients: ExitStack
) -> None:
    learner, actor = connected(parameters, clients, rounded=ROUNDED), connected(parameters, clients)
    learner.open_epoch("run")
    learner.publish(MIXED, iteration=1)
    actor.fetch()
    sent = parameters.figure("publish_bytes_total")
    changed = MIXED | {"trained.weight": MIXED["trained.weight"] + 1}
    learner.publish(changed, iteration=2)
    assert_same(actor.fetch()[1], as_fetched(changed, ROUNDED))
    assert parameters.figure("publish_bytes_total") - sent == 90_000 * 2
    assert parameters.figure("fetch_bytes_total") - sent == 90_000 * 2


def test_learner_resumed_with_the_other_wire_dtype_goes_on_publishing(
    parameters: Parameters, clients: ExitStack
) -> None:
    architecture = {name: (array.dtype.name, array.shape) for name, array in MIXED.items()}
    actor = connected(parameters, clients, architecture=architecture)
    for version, rounded in enumerate(([], ROUNDED, []), 1):
        learner = connected(parameters, clients, rounded=rounded)
        learner.open_epoch("run", epoch=version, version=version - 1)
        assert learner.publish(MIXED, iteration=version) == version
        assert next(actor.watch()).version == version
        assert_same(actor.fetch()[1], as_fetched(MIXED, rounded))


def test_a_restarted_learner_does_not_send_what_parameters_holds(
    parameters: Parameters, clients: ExitStack, learner: ParametersClient, make_weights: MakeWeights
) -> None:
    learner.publish(make_weights(), iteration=1)
    sent = parameters.figure("publish_bytes_total")
    restarted = connected(parameters, clients)
    assert restarted.open_epoch("run", epoch=1, version=1).newest_version == 1
    assert restarted.publish(make_weights(), iteration=1) == 2
    assert parameters.figure("publish_bytes_total") == sent


def test_racing_publishes_let_the_newest_epoch_win_and_leave_no_version_gap(
    parameters: Parameters, clients: ExitStack, make_weights: MakeWeights
) -> None:
    racers = [connected(parameters, clients) for _ in range(2)]
    epochs = [racer.open_epoch("run").epoch for racer in racers]
    assert epochs == [1, 2]
    start = threading.Barrier(2)

    def race(seed: int) -> int | str:
        start.wait()
        try:
            return racers[seed].publish(make_weights(seed, 2 * PIECE_BYTES), iteration=seed)
        except FencedError as error:
            return str(error)

    with ThreadPoolExecutor(2) as pool:
        lost, won = pool.map(race, range(2))
    assert won == 1
    assert "epoch 1 may not publish: epoch 2 is the newest" in str(lost)
    assert connected(parameters, clients).fetch()[0].epoch == 2


def messages(weights: Weights, *, expected: int, epoch: int = 1) -> Iterator[pb.PublishRequest]:
    manifest, parts = describe(weights)
    yield pb.PublishRequest(
        header=pb.PublishHeader(run_id="run", epoch=epoch, expected_version=expected, manifest=manifest)
    )
    for digest, part in parts.items():
        for offset in range(0, part.nbytes, PIECE_BYTES):
            data = part[offset : offset + PIECE_BYTES].tobytes()
            yield pb.PublishRequest(pieces=[weights_pb2.TensorPiece(digest=digest, offset=offset, data=data)])


def test_an_expired_version_is_not_found_and_never_substituted(
    tmp_path: Path, clients: ExitStack, make_weights: MakeWeights, run_parameters: Callable[..., Any]
) -> None:
    with run_parameters(tmp_path, keep=3) as parameters:
        learner, actor = connected(parameters, clients), connected(parameters, clients)
        with pytest.raises(NotFoundError, match="no version has been published yet"):
            actor.fetch()
        learner.open_epoch("run")
        for iteration in range(5):
            learner.publish(make_weights(iteration), iteration=iteration)
        assert actor.fetch(4)[0].version == 4
        for number in (2, 6):
            with pytest.raises(NotFoundError, match="the oldest available is 3, the newest 5"):
                actor.fetch(number)
    assert {path.name for path in (tmp_path / "versions").iterdir()} == {"3.json", "4.json", "5.json"}


def test_fetch_that_is_cut_goes_on_where_it_was_cut(
    parameters: Parameters, clients: ExitStack, learner: ParametersClient, cutting_proxy: Callable[[str, int], Any]
) -> None:
    size_bytes, cut_after_bytes = 32 * PIECE_BYTES, 24 * PIECE_BYTES
    weights = {"one": np.random.default_rng(0).standard_normal(size_bytes // 4, np.float32)}
    learner.publish(weights, iteration=1)
    proxy = cutting_proxy(parameters.address, cut_after_bytes)
    actor = ParametersClient(proxy.address, patience_s=20.0)
    clients.callback(actor.close)
    assert_same(actor.fetch()[1], weights)
    assert proxy.connections >= 2
    # What was in flight when the connection was cut is lost: at most a flow-control window.
    assert proxy.passed_bytes < cut_after_bytes + size_bytes - 8 * PIECE_BYTES


def test_publish_whose_connection_is_cut_goes_through_once(
    parameters: Parameters, clients: ExitStack, make_weights: MakeWeights, cutting_proxy: Callable[[str, int], Any]
) -> None:
    proxy = cutting_proxy(parameters.address, 200)
    learner = ParametersClient(proxy.address, patience_s=20.0)
    clients.callback(learner.close)
    learner.open_epoch("run")
    for iteration in range(1, 4):
        assert learner.publish(make_weights(iteration, 4 * PIECE_BYTES), iteration=iteration) == iteration
    assert proxy.connections >= 2
    assert parameters.store.kept == [1, 2, 3]


def test_parameters_caller_that_hangs_up_leaves_nothing(
    tmp_path: Path, clients: ExitStack, make_weights: MakeWeights, run_parameters: Callable[..., Any]
) -> None:
    with run_parameters(tmp_path) as parameters:
        learner = connected(parameters, clients)
        learner.open_epoch("run")
        learner.publish(make_weights(1, 4 * PIECE_BYTES), iteration=1)
        sent, hung_up = threading.Event(), threading.Event()

        def half() -> Iterator[pb.PublishRequest]:
            every = messages(make_weights(2, 4 * PIECE_BYTES), expected=1)
            yield from (next(every), next(every), next(every))
            sent.set()
            hung_up.wait()

        call = stub_for(parameters.address, clients).Publish.future(half(), timeout=20)
        sent.wait()
        call.cancel()
        hung_up.set()
        assert learner.publish(make_weights(3, 4 * PIECE_BYTES), iteration=3) == 2
    assert list((tmp_path / "incoming").iterdir()) == []
    needed = {entry.digest for number in (1, 2) for entry in parameters.store.version(number).manifest.tensors}
    assert {path.stem for path in (tmp_path / "tensors").iterdir()} == needed


def test_watchers_get_the_newest_version_and_then_newer_ones(
    parameters: Parameters, clients: ExitStack, learner: ParametersClient, make_weights: MakeWeights
) -> None:
    early = connected(parameters, clients, watcher="early").watch()
    with ThreadPoolExecutor(1) as pool:
        first = pool.submit(next, early)
        learner.publish(make_weights(1), iteration=1)
        assert first.result().version == 1
    for iteration in range(2, 6):
        learner.publish(make_weights(iteration), iteration=iteration)
    late = connected(parameters, clients, watcher="late").watch()
    assert next(late).version == 5
    seen = [1]
    while seen[-1] < 5:
        seen.append(next(early).version)
    assert seen == sorted(set(seen))
    early.close()
    late.close()


def test_a_watch_lives_through_a_restart_of_the_server(
    tmp_path: Path, clients: ExitStack, make_weights: MakeWeights, run_parameters: Callable[..., Any]
) -> None:
    with run_parameters(tmp_path) as parameters:
        learner = connected(parameters, clients)
        learner.open_epoch("run")
        learner.publish(make_weights(1), iteration=1)
        watch = connected(parameters, clients).watch()
        assert next(watch).version == 1
    with run_parameters(tmp_path, address=parameters.address), ThreadPoolExecutor(1) as pool:
        second = pool.submit(next, watch)
        learner.publish(make_weights(2), iteration=2)
        assert second.result().version == 2
        watch.close()


def test_a_watch_ends_with_unavailable_when_the_server_drains(
    parameters: Parameters, clients: ExitStack, learner: ParametersClient, make_weights: MakeWeights
) -> None:
    learner.publish(make_weights(), iteration=1)
    stub = stub_for(parameters.address, clients)
    watch = stub.Watch(pb.WatchRequest(watcher="a"), timeout=20)
    assert next(watch).newest.version == 1
    parameters.stopping.set()
    with pytest.raises(grpc.RpcError) as caught:
        next(watch)
    assert caught.value.code() is grpc.StatusCode.UNAVAILABLE
    assert "draining" in str(caught.value.details())


def test_a_watcher_of_another_architecture_is_refused(
    parameters: Parameters, clients: ExitStack, learner: ParametersClient, make_weights: MakeWeights
) -> None:
    learner.publish(make_weights(), iteration=1)
    fitting = {name: (str(array.dtype), array.shape) for name, array in make_weights().items()}
    with closing(connected(parameters, clients, architecture=fitting).watch()) as watch:
        assert next(watch).version == 1
    other = {name: fitting[name] for name in list(fitting)[1:]} | {"scale": ("float32", (2,))}
    with pytest.raises(
        ContractError, match=r"frozen.weight is float32\[512\] in the run and missing here; scale is float64"
    ):
        next(connected(parameters, clients, architecture=other).watch())


def test_publish_of_weights_that_do_not_fit_is_refused_with_its_reason(
    parameters: Parameters, clients: ExitStack, learner: ParametersClient, make_weights: MakeWeights
) -> None:
    learner.publish(make_weights(1), iteration=1)
    with pytest.raises(RejectedError, match="NaN"):
        learner.publish(make_weights(2) | {"scale": np.array(np.nan)}, iteration=2)
    with pytest.raises(ContractError, match=r"scale is float64\[\] in the run and missing here"):
        learner.publish({name: array for name, array in make_weights(2).items() if name != "scale"}, iteration=2)
    with pytest.raises(ContractError, match=r"holds run run, the learner is of run other"):
        connected(parameters, clients).open_epoch("other")
    with pytest.raises(RejectedError, match="names none"):
        connected(parameters, clients).open_epoch("")
    assert learner.publish(make_weights(2), iteration=2) == 2


@pytest.mark.parametrize(
    ("ranges", "code"),
    [
        ([pb.TensorRange(digest="../../identity")], grpc.StatusCode.NOT_FOUND),
        ([pb.TensorRange(digest="FIRST", offset=2**40)], grpc.StatusCode.INVALID_ARGUMENT),
        ([pb.TensorRange(digest="FIRST")] * 2, grpc.StatusCode.INVALID_ARGUMENT),
    ],
    ids=["unknown digest", "offset beyond the end", "twice"],
)
def test_malformed_fetches_are_refused(
    parameters: Parameters,
    clients: ExitStack,
    learner: ParametersClient,
    make_weights: MakeWeights,
    ranges: list[pb.TensorRange],
    code: grpc.StatusCode,
) -> None:
    learner.publish(make_weights(), iteration=1)
    first = parameters.store.version().manifest.tensors[0].digest
    asked = [pb.TensorRange(digest=each.digest.replace("FIRST", first), offset=each.offset) for each in ranges]
    with pytest.raises(grpc.RpcError) as caught:
        list(stub_for(parameters.address, clients).Fetch(pb.FetchRequest(ranges=asked), timeout=20))
    assert caught.value.code() is code


def test_a_message_that_is_too_large_is_refused_and_the_server_lives(
    parameters: Parameters, clients: ExitStack, learner: ParametersClient, make_weights: MakeWeights
) -> None:
    every = list(messages(make_weights(), expected=0))
    every[1].pieces[0].data = bytes(17 * 2**20)
    options = [("grpc.max_send_message_length", -1)]
    channel = clients.enter_context(grpc.insecure_channel(parameters.address, options=options))
    with pytest.raises(grpc.RpcError) as caught:
        parameters_service_pb2_grpc.ParametersServiceStub(channel).Publish(iter(every), timeout=20)
    assert caught.value.code() is grpc.StatusCode.RESOURCE_EXHAUSTED
    assert learner.publish(make_weights(), iteration=1) == 1
