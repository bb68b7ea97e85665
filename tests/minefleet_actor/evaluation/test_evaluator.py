import pytest

from minefleet.rpc.weights.version_info import read_info
from minefleet.v1 import weights_pb2
from minefleet_actor.evaluator import due


@pytest.mark.parametrize(
    ("iterations", "evaluated"),
    [
        ([0, 9, 10, 11, 25, 30], [10, 25, 30]),
        ([10, 20, 30, 15, 20, 25, 30], [10, 20, 30, 20, 30]),  # It went back to iteration 15.
        ([10, 19, 15, 19, 20], [10, 20]),
    ],
)
def test_each_tenth_iteration_is_evaluated_once_and_again_where_the_run_went_back(
    iterations: list[int], evaluated: list[int]
) -> None:
    news = [read_info(weights_pb2.VersionInfo(iteration=one)) for one in iterations]
    assert [one.iteration for one in due(news, 10)] == evaluated
