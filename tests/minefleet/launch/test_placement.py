import math
from dataclasses import replace

import pytest
from hypothesis import given
from hypothesis import strategies as st

from minefleet.config import FleetConfig, RolloutConfig, TrainConfig
from minefleet.core.errors import ConfigError
from minefleet.launch.machine import Machine
from minefleet.launch.placement import ALL_CORES, ProcessPlacement, place

SHARES = st.sampled_from([0.0, 0.1, 0.25, 0.3, 0.5, 1.0, 2.0])
MACHINES = st.builds(
    lambda cores, gpus: Machine(cores=tuple(range(cores)), gpus=tuple(f"GPU-{number}" for number in range(gpus))),
    st.integers(1, 64),
    st.integers(0, 8),
)
CONFIGS = st.builds(
    lambda learner, actors, gpus, cpus: FleetConfig(
        train_config=TrainConfig(num_gpus_per_worker=learner),
        rollout_config=RolloutConfig(num_rollout_workers=actors, num_gpus_per_worker=gpus, num_cpus_per_worker=cpus),
    ),
    SHARES,
    st.integers(0, 9),
    SHARES,
    st.sampled_from([0.0, 0.5, 1.0, 2.5, 8.0]),
)


def config_of(learner: float, actors: int, gpus: float, cpus: float = 0.0) -> FleetConfig:
    rollout = RolloutConfig(num_rollout_workers=actors, num_gpus_per_worker=gpus, num_cpus_per_worker=cpus)
    return FleetConfig(train_config=TrainConfig(num_gpus_per_worker=learner), rollout_config=rollout)


def machine(cores: int = 4, gpus: int = 0) -> Machine:
    return Machine(cores=tuple(range(cores)), gpus=tuple(map(str, range(gpus))))


@given(CONFIGS, MACHINES)
def test_placement_fills_no_gpu_beyond_its_room_without_a_note(config: FleetConfig, on: Machine) -> None:
    placed = place(config, on)
    loads = dict.fromkeys(on.gpus, 0.0)
    shares = [config.train_config.num_gpus_per_worker, *[config.rollout_config.num_gpus_per_worker] * 9]
    for process, share in zip((*placed.learners, *placed.actors), shares, strict=False):
        assert len(process.gpus) == min(math.ceil(share), len(on.gpus))
        assert len(set(process.gpus)) == len(process.gpus)
        for gpu in process.gpus:
            loads[gpu] += min(share, 1.0)
    told = any("but there are" in note for note in placed.notes)
    assert told or max(loads.values(), default=0.0) < 1.001
    if not told and sum(shares[: 1 + len(placed.actors)]) > 0:
        assert sum(loads.values()) == pytest.approx(sum(shares[: 1 + len(placed.actors)]))


@given(CONFIGS, MACHINES)
def test_placement_shares_no_core_of_an_actor_with_another_role(config: FleetConfig, on: Machine) -> None:
    placed = place(config, on)
    sets = [process.cores for process in (*placed.learners, *placed.actors)]
    if any(sets):
        asked = math.ceil(config.rollout_config.num_cpus_per_worker)
        learner, *actors = sets
        if asked or len(actors) == len(on.cores) - 1:
            assert sorted(core for cores in sets for core in cores) == list(on.cores)
            assert {len(cores) for cores in actors} == {asked or 1}
        else:
            assert set(actors) == {tuple(core for core in on.cores if core not in learner)}
        assert len(learner) >= (3 if asked else 1)
        assert all(actor.all_cores == on.cores for actor in placed.actors)
        assert placed.others.cores == (placed.learners[0].cores if asked else ())
    else:
        assert placed.others.cores == placed.learners[0].cores == ()


@given(CONFIGS, MACHINES)
def test_placement_gives_the_cores_that_are_asked_for_or_refuses(config: FleetConfig, on: Machine) -> None:
    placed = place(config, on)
    asked = bool(placed.actors) and config.rollout_config.num_cpus_per_worker > 0
    told = sum("no process gets its own" in note for note in placed.notes)
    assert told == (asked and not placed.learners[0].cores)


@pytest.mark.parametrize(
    ("learner", "actors", "share", "gpus", "expected"),
    [
        (1, 4, 0.5, 3, ("0", ["1", "1", "2", "2"])),
        (1, 2, 1, 3, ("0", ["1", "2"])),
        (0.5, 2, 0.25, 1, ("0", ["0", "0"])),
        (2, 1, 2, 4, ("0,1", ["2,3"])),
        (0, 10, 0.1, 2, ("", ["0"] * 10)),
        (1, 2, 0, 2, ("0", ["", ""])),
    ],
)
def test_placement_gives_gpus_to_the_learner_first_and_packs_shares(
    learner: float, actors: int, share: float, gpus: int, expected: tuple[str, list[str]]
) -> None:
    placed = place(config_of(learner, actors, share), machine(gpus=gpus))
    assert placed.notes == ()
    assert (",".join(placed.learners[0].gpus), [",".join(one.gpus) for one in placed.actors]) == expected


def test_too_few_gpus_are_shared_and_that_is_said_once() -> None:
    placed = place(config_of(1, 3, 1), machine(gpus=2))
    (note,) = placed.notes
    assert "by train_config.num_gpus_per_worker=1 and rollout_config.num_gpus_per_worker=1 with num_rollo" in note
    assert "there are 2 here: they are shared" in note
    assert (placed.learners[0].gpus, [one.gpus for one in placed.actors]) == (("0",), [("1",), ("0",), ("1",)])


def test_placement_without_gpus_puts_all_on_the_cpu_with_one_note() -> None:
    placed = place(config_of(1, 3, 0.5), machine(cores=5))
    (note,) = placed.notes
    assert "there are none here: all run on the CPU" in note
    assert all(process.variables == {} for process in (*placed.learners, *placed.actors))


def test_placement_leaves_a_role_as_it_is_that_asks_for_nothing() -> None:
    placed = place(config_of(0, 2, 0), machine(cores=64, gpus=8))
    assert (placed.learners, placed.others, placed.actors, placed.notes) == (
        (ProcessPlacement(),),
        ProcessPlacement(),
        (ProcessPlacement(),) * 2,
        (),
    )


@pytest.mark.parametrize(
    ("actors", "ranks", "cores", "learner", "each"),
    [
        (1, 1, 2, (0,), [(1,)]),
        (2, 2, 4, (0, 1), [(2,), (3,)]),
        (1, 1, 3, (), [()]),
        (2, 1, 2, (0,), [(1,)] * 2),
        (3, 1, 3, (0,), [(1, 2)] * 3),
        (1, 2, 2, (), [()]),
        (1, 1, 1, (), [()]),
    ],
)
def test_placement_keeps_the_learner_and_actors_apart_where_they_take_all_cores(
    actors: int, ranks: int, cores: int, learner: tuple[int, ...], each: list[tuple[int, ...]]
) -> None:
    rollout, train = RolloutConfig(num_rollout_workers=actors), TrainConfig(num_workers=ranks)
    config = FleetConfig(rollout_config=rollout, train_config=train)
    placed = place(config, machine(cores=cores))
    assert [one.cores for one in placed.learners] == [learner] * ranks
    assert [one.cores for one in placed.actors] == each
    assert placed.others == ProcessPlacement()
    threaded = replace(config, train_config=replace(train, torch_threads=2))
    buffer = replace(rollout.replay_buffer_config, max_staleness=0)
    in_turns = replace(config, rollout_config=replace(rollout, replay_buffer_config=buffer))
    on_the_same = (place(each, machine(cores=cores)) for each in (threaded, in_turns))
    for other in (*on_the_same, place(config, machine(cores=cores, gpus=1))):
        assert not any(one.cores for one in (*other.learners, *other.actors))


def test_placement_variables_name_the_gpus_and_cores_of_a_process() -> None:
    here = ProcessPlacement(gpus=("3", "MIG-7"), cores=(2,), all_cores=(0, 2))
    assert here.variables == {"CUDA_VISIBLE_DEVICES": "3,MIG-7", ALL_CORES: "0,2"}


def test_shards_and_threads_of_the_learner_are_counted_among_the_rest() -> None:
    config = config_of(0, 2, 0, cpus=2)
    assert place(config, machine(cores=7)).learners[0].cores == (0, 1, 2)
    greedy = replace(config, train_config=TrainConfig(torch_threads=2))
    assert place(greedy, machine(cores=7)).learners[0].cores == ()


@pytest.mark.parametrize("config", [TrainConfig, RolloutConfig])
def test_num_gpus_per_worker_above_one_must_be_whole(config: type[TrainConfig] | type[RolloutConfig]) -> None:
    with pytest.raises(ConfigError, match=r"num_gpus_per_worker must be a whole number or at most 1, got 1\.5"):
        config(num_gpus_per_worker=1.5)


def test_every_rank_of_the_learner_has_its_own_gpu_before_the_actors_and_all_share_the_cores() -> None:
    rollout = RolloutConfig(num_rollout_workers=1, num_gpus_per_worker=1, num_cpus_per_worker=1)
    train = TrainConfig(num_workers=2, num_gpus_per_worker=1, torch_threads=2)
    placed = place(FleetConfig(train_config=train, rollout_config=rollout), machine(cores=8, gpus=3))
    assert [one.gpus for one in (*placed.learners, *placed.actors)] == [("0",), ("1",), ("2",)]
    assert [one.cores for one in placed.learners] == [(0, 1, 2, 3, 4, 5, 6)] * 2
    crowded = place(FleetConfig(train_config=train, rollout_config=rollout), machine(cores=6, gpus=3))
    assert [one.cores for one in placed.learners] != [one.cores for one in crowded.learners] == [(), ()]


def test_placement_keeps_the_cores_of_readers_free_of_actors() -> None:
    def rest(per_reader: float) -> int:
        train = TrainConfig(torch_threads=1, num_readers=4, num_cpus_per_reader=per_reader)
        rollout = RolloutConfig(num_rollout_workers=2, num_cpus_per_worker=1.0)
        placed = place(FleetConfig(train_config=train, rollout_config=rollout), machine(cores=8))
        return len(placed.learners[0].cores)

    assert rest(0.1) == 6
    assert rest(0.5) == 6
    assert rest(2.0) == 0
