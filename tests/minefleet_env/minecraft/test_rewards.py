"""Rewards for what the engine counts."""

from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from minefleet_env.errors import RefusedError
from minefleet_env.minecraft.rewards import Rewards, rules_of

KNOWN = {"kill_entity": {"cow", "sheep"}, "mine_block": {"oak_log", "birch_log"}}
HUNT = {"event": "kill_entity", "objects": ["sheep", "cow"], "reward": 2.0}


@given(
    before=st.integers(0, 5),
    kills=st.lists(st.tuples(st.integers(0, 3), st.integers(0, 3)), max_size=8),
    limit=st.one_of(st.none(), st.integers(0, 6)),
)
def test_rewards_pay_each_unit_of_an_episode_once_up_to_the_limit(
    before: int, kills: list[tuple[int, int]], limit: int | None
) -> None:
    rewards = Rewards(rules_of([HUNT | ({} if limit is None else {"max_reward_times": limit})], KNOWN))
    rewards.reset({"kill_entity": {"cow": before}})
    paid, cows, sheep = [], before, 0
    for more_cows, more_sheep in kills:
        cows, sheep = cows + more_cows, sheep + more_sheep
        paid.append(rewards.pay({"kill_entity": {"cow": cows, "sheep": sheep}}))
    units = sum(map(sum, kills))
    assert sum(paid) == 2.0 * (units if limit is None else min(units, limit))
    assert rewards.metrics() == {"kill_entity sheep or cow": sum(paid) / 2.0}


def test_rewards_pay_anew_in_a_new_episode_and_nothing_that_was_counted_before() -> None:
    rewards = Rewards(rules_of([HUNT | {"max_reward_times": 1}], KNOWN))
    for counted in (3, 7):
        rewards.reset({"kill_entity": {"cow": counted}})
        assert rewards.pay({"kill_entity": {"cow": counted}}) == 0.0
        assert rewards.pay({"kill_entity": {"cow": counted + 1}}) == 2.0
        assert rewards.pay({"kill_entity": {"cow": counted + 2}}) == 0.0


def test_rewards_of_several_rules_add_up_and_an_event_not_sent_counts_nothing() -> None:
    chop = {"event": "mine_block", "objects": ["oak_log"], "reward": 0.5, "identity": "chop"}
    rewards = Rewards(rules_of([HUNT, chop], KNOWN))
    assert rewards.events == ("kill_entity", "mine_block")
    rewards.reset({})
    assert rewards.pay({"mine_block": {"oak_log": 3, "birch_log": 4}}) == 1.5
    assert rewards.pay({"kill_entity": {"sheep": 1}, "mine_block": {"oak_log": 4}}) == 2.5
    assert rewards.metrics() == {"kill_entity sheep or cow": 1.0, "chop": 4.0}


@pytest.mark.parametrize(
    ("rewards", "message"),
    [
        ([HUNT | {"objects": ["cows"]}], "'cows' is not an object of kill_entity; the nearest are cow"),
        ([HUNT | {"event": "kill_entities"}], "'kill_entities' is not an event; the nearest are kill_entity"),
        ([HUNT | {"max_reward": 3}], "'max_reward' is not a key of a reward; the nearest are max_reward_times"),
        ([{"event": "kill_entity", "objects": ["cow"]}], "lacks reward"),
        ([HUNT | {"reward": "much"}], "could not convert"),
        ([HUNT, HUNT], "must differ in their identity"),
    ],
)
def test_reward_rule_that_cannot_pay_is_refused(rewards: list[dict[str, Any]], message: str) -> None:
    with pytest.raises(RefusedError, match=message):
        rules_of(rewards, KNOWN)
