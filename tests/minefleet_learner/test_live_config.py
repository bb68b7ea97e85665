"""Keys that are changed while a learner trains, on real replay and parameters servers."""

import contextlib
import shutil
import threading
from collections.abc import Callable, Iterator
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from tests.minefleet_learner.test_loop import Fleet, iterate, make_config

from minefleet.core.fragment import Fragment
from minefleet.core.schema import Schema
from minefleet.launch.rollout_manager_handle import RolloutManager
from minefleet.monitoring.journal import Line, append, read_whole_journal, record_start
from minefleet.monitoring.learner_requests_in_journal import REFUSED, SET, answers_in, ask
from minefleet.monitoring.live_settings_by_iteration import set_lines
from minefleet.policies import build
from minefleet.rpc.retrier import StoppedError
from minefleet.runs.checkpoint_files import CheckpointState, newest, read_state
from minefleet.runs.run_yaml import JOURNAL_FILE
from minefleet.v1 import status_service_pb2
from minefleet_learner import PPOTrainer, live_config
from minefleet_learner.loop import Learner

Serve = Callable[..., Fleet]
LR, NORM = "train_config.learning_rate", "train_config.max_grad_norm"


class Died(BaseException):
    """The learner's process ends here."""


@pytest.fixture
def serve(tmp_path: Path, schema: Schema, make_fragment: Callable[..., Fragment]) -> Iterator[Serve]:
    """Makes fleets, each in a folder of its own."""
    with contextlib.ExitStack() as stack:

        def start(name: str = "run", **changes: Any) -> Fleet:
            (tmp_path / name).mkdir()
            made = Fleet(tmp_path / name, schema, make_fragment, make_config(**changes))
            for context in (*made.shards, made.parameters):
                made.serve(context)
            stack.callback(made.close)
            return made

        yield start


def step(made: Fleet, learner: Learner) -> None:
    """One iteration on fragments that the newest version has acted."""
    path = newest(made.run.checkpoints)
    assert path is not None
    made.act(max(read_state(path).version, 1))
    iterate(learner)


def weights(learner: Learner) -> list[torch.Tensor]:
    return [tensor.clone() for _, tensor in sorted(learner.updater.policy.state_dict().items())]


def values(made: Fleet, name: str = "learning_rate") -> dict[int, Any]:
    return {row["iteration"]: row.get(name) for row in made.rows()}


def answers(made: Fleet) -> list[Line]:
    return [*answers_in(read_whole_journal(made.run.directory)).values()]


def test_a_key_is_set_from_the_iteration_on_that_the_journal_says_and_its_row_names_it(serve: Serve) -> None:
    made = serve(num_iterations=4)
    learner, _ = made.learner()
    learner.start()
    step(made, learner)
    request = ask(made.run.directory, "try", set={LR: 1e-3, "train_config.ppo_clip": 0.1})
    while not learner.is_over:
        step(made, learner)
    learner.finish("signal")
    (answer,) = answers(made)
    assert (answer["event"], answer["id"], answer["iteration"], answer["why"]) == (SET, request, 3, "try")
    assert answer["keys"] == [
        {"key": LR, "old": 3e-4, "new": 1e-3},
        {"key": "train_config.ppo_clip", "old": 0.2, "new": 0.1},
    ]
    assert values(made) == {1: 3e-4, 2: 3e-4, 3: 1e-3, 4: 1e-3}
    assert values(made, "clip") == {1: 0.2, 2: 0.2, 3: 0.1, 4: 0.1}
    assert values(made, "changed_keys") == {1: None, 2: None, 3: {LR: 1e-3, "train_config.ppo_clip": 0.1}, 4: None}


@pytest.mark.parametrize(
    "asked", [{LR: 0}, {LR: 1e-3, "seed": 4}, {"train_config.discount": 0.5}, {}, 7, {LR: [[[]]] * 3}, {"": 1}]
)
def test_a_request_that_cannot_be_is_refused_whole_and_training_goes_on(serve: Serve, asked: Any) -> None:
    made = serve(num_iterations=3)
    learner, _ = made.learner()
    ask(made.run.directory, set=asked)
    ask(made.run.directory, rolled_back=3)
    learner.start()
    while not learner.is_over:
        step(made, learner)
    learner.finish("signal")
    assert [answer["event"] for answer in answers(made)] == [REFUSED, REFUSED]
    assert all(answer["reason"] for answer in answers(made))
    assert set(values(made).values()) == {3e-4}


@pytest.mark.parametrize(
    "moment", ["before the answer", "within the answer", "after the answer", "before the iteration"]
)
def test_a_learner_that_dies_around_its_answer_ends_at_the_weights_of_one_that_did_not(
    serve: Serve, monkeypatch: pytest.MonkeyPatch, moment: str
) -> None:
    asked = {LR: 2e-3, NORM: 0.05}
    made = serve(num_iterations=6)

    def dying(directory: Path, event: str, place: Any, **more: Any) -> None:
        if event == SET and moment == "within the answer":
            append(directory, event, place, **more)
            text = (directory / JOURNAL_FILE).read_bytes()
            (directory / JOURNAL_FILE).write_bytes(text[: text.rindex(b"\n", 0, -1) + 40])
        elif event == SET and moment != "before the answer":
            append(directory, event, place, **more)
        if moment != "before the iteration":
            raise Died

    monkeypatch.setattr(live_config, "append", dying)
    learner, _ = made.learner()
    learner.start()
    step(made, learner)
    step(made, learner)
    ask(made.run.directory, set=asked)
    if moment == "before the iteration":
        step(made, learner)
    else:
        with pytest.raises(Died):
            learner.take()
    learner.close()
    monkeypatch.undo()

    learner, _ = made.learner()
    learner.start()
    while not learner.is_over:
        step(made, learner)
    learner.finish("signal")
    (answer,) = answers(made)
    iteration = answer["iteration"]
    assert iteration == (4 if moment in ("after the answer", "before the iteration") else 3)
    assert values(made) == {number: 3e-4 if number < iteration else 2e-3 for number in range(1, 7)}

    twins = dict[str, list[torch.Tensor]]()
    for name, lines in (("repeats", set_lines(read_whole_journal(made.run.directory))), ("without", [])):
        twin = serve(name, num_iterations=6)
        for line in lines:
            append(twin.run.directory, SET, line, id=line["id"], keys=line["keys"])
        undisturbed, _ = twin.learner()
        undisturbed.start()
        while not undisturbed.is_over:
            step(twin, undisturbed)
        undisturbed.finish("signal")
        twins[name] = weights(undisturbed)
    assert all(map(torch.equal, weights(learner), twins["repeats"]))
    assert not all(map(torch.equal, weights(learner), twins["without"]))


def test_a_checkpoint_from_before_an_iteration_repeats_what_was_set_for_it(serve: Serve, tmp_path: Path) -> None:
    made = serve(num_iterations=5)
    learner, _ = made.learner()
    learner.start()
    ask(made.run.directory, set={LR: 1e-3})
    step(made, learner)
    shutil.copytree(made.run.checkpoints, tmp_path / "kept", symlinks=True)
    step(made, learner)
    step(made, learner)
    learner.close()
    shutil.rmtree(made.run.checkpoints)
    (tmp_path / "kept").rename(made.run.checkpoints)
    ask(made.run.directory, set={LR: 5e-3})  # The last word counts, also where it holds earlier.
    learner, _ = made.learner()
    learner.start()
    version = read_state(made.run.checkpoints / "latest").version
    while not learner.is_over:
        made.act(version + 4)
        iterate(learner)
        version += 1
    learner.finish("signal")
    assert [(answer["iteration"], answer["keys"][0]["new"]) for answer in answers(made)] == [(2, 1e-3), (2, 5e-3)]
    assert values(made) == {1: 3e-4, 2: 5e-3, 3: 5e-3, 4: 5e-3, 5: 5e-3}


def test_bounds_of_a_run_move_while_it_goes_and_for_a_run_that_has_ended(serve: Serve) -> None:
    made = serve(num_iterations=2)
    learner, _ = made.learner()
    learner.start()
    step(made, learner)
    ask(made.run.directory, set={"train_config.num_iterations": 3, "train_config.save_interval": 1})
    while not learner.is_over:
        step(made, learner)
    learner.finish("signal")
    assert made.result()["iteration"] == 3
    assert {path.name for path in made.run.checkpoints.iterdir()} == {"00000003", "latest"}
    ask(made.run.directory, set={"train_config.num_iterations": 50})
    learner, _ = made.learner()
    learner.start()
    step(made, learner)
    ask(made.run.directory, set={"stop.env_steps": 1})
    while not learner.is_over:
        step(made, learner)
    learner.finish("signal")
    assert (made.result()["iteration"], made.result()["stopped_by"]) == (5, "env_steps")


def test_minutes_that_are_set_end_a_wait_for_fragments(serve: Serve) -> None:
    made = serve(max_staleness=3)
    learner, _ = made.learner(background=True)
    learner.start()
    made.act(1)
    ask(made.run.directory, set={"stop.minutes": 1e-6})
    iterate(learner)
    with pytest.raises(StoppedError):
        iterate(learner)
    learner.finish("signal")
    assert made.result()["stopped_by"] == "minutes"


def test_an_answer_that_the_disk_has_no_room_for_changes_nothing_and_is_given_later(
    serve: Serve, monkeypatch: pytest.MonkeyPatch
) -> None:
    made = serve(num_iterations=5)
    learner, _ = made.learner()
    learner.start()
    ask(made.run.directory, set={LR: 1e-3})

    def full(*_: Any, **__: Any) -> None:
        raise OSError(28, "No space left on device")

    monkeypatch.setattr(live_config, "append", full)
    step(made, learner)
    step(made, learner)
    monkeypatch.undo()
    assert answers(made) == []
    while not learner.is_over:
        step(made, learner)
    learner.finish("signal")
    assert values(made) == {1: 3e-4, 2: 3e-4, 3: 3e-4, 4: 1e-3, 5: 1e-3}


def test_a_learner_answers_nothing_once_another_has_started(serve: Serve) -> None:
    made = serve()
    learner, _ = made.learner()
    learner.start()
    record_start(made.run, CheckpointState(run_id="r"), "another")
    ask(made.run.directory, set={LR: 1e-3})
    step(made, learner)
    learner.close()
    assert answers(made) == []


def test_a_trainer_of_ones_own_sees_the_values_of_the_iteration(serve: Serve) -> None:
    class Seeing(PPOTrainer):
        def train(self) -> None:
            self.seen: list[Any] = []
            while not self.is_over:
                made.act(len(self.seen) + 1)
                taken = self.take()
                self.seen.append((self.config.learning_rate, self.gae_lambda, self.gae_actor.gae_lambda))
                assert taken.config.train_config == self.config
                self.report = self.update(taken)
                self.broadcast_model_to_rollout_workers(new_version=True)

    made = serve(num_iterations=4)
    ask(made.run.directory, set={LR: 1e-3})
    config = made.run.config
    keys = {name: getattr(config.train_config, name) for name in config.train_config.__slots__}
    trainer = Seeing(RolloutManager(made.run), partial(build, config.policy, made.run.schema), lambda: None, **keys)

    def act() -> None:
        if len(trainer.seen) == 1:
            ask(made.run.directory, set={"train_config.gae_lambda": 0.5})

    trainer.fit(made.context("learner", status_service_pb2.ROLE_LEARNER), act)
    assert trainer.seen == [(1e-3, 0.95, 0.95), (1e-3, 0.95, 0.95), (1e-3, 0.5, 0.5), (1e-3, 0.5, 0.5)]


def test_requests_by_many_while_a_learner_trains_are_each_answered_once(serve: Serve) -> None:
    made = serve(num_iterations=8, max_staleness=8)
    learner, _ = made.learner(background=True)
    learner.start()
    made.act(1, fragments=4 * 8)
    rates = np.linspace(1e-4, 1e-2, 60).tolist()

    def ask_all(part: int) -> None:
        for rate in rates[part::3]:
            ask(made.run.directory, set={LR: rate})

    writers = [threading.Thread(target=ask_all, args=(part,)) for part in range(3)]
    for writer in writers:
        writer.start()
    for number in range(8):
        if number == 3:
            for writer in writers:
                writer.join()
        iterate(learner)
    learner.finish("signal")
    lines = set_lines(read_whole_journal(made.run.directory))
    assert sorted(line["keys"][0]["new"] for line in lines) == rates
    assert values(made)[8] == lines[-1]["keys"][0]["new"]
