"""A sweep's trials, in a folder that several machines may share.

DIR/
├── sweep.yaml       the sweep
├── trials.journal   Optuna's: every trial with its values, results on the way, and end
├── claim.lock       held by who takes a trial
├── trial-0003/      the run of a trial
└── trial-0003.log   its launcher's lines; locked while the trial is under way

A trial whose process was killed is still marked as running in the journal, and nobody holds its log: the next to look
for work takes it up, and its run goes on from its checkpoint.
"""

import fcntl
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import IO, Any
from zlib import crc32

import optuna
from optuna.storages.journal import JournalFileBackend, JournalFileOpenLock
from optuna.trial import FrozenTrial, Trial, TrialState

from minefleet.config.yaml_text import as_yaml
from minefleet.core.atomic_files import write_whole
from minefleet.core.errors import ConfigError
from minefleet.monitoring.jsonl_tail import whole_bytes
from minefleet.sweeps.spec import Range, SweepSpec, read_spec

SPEC_FILE, JOURNAL_FILE, CLAIM_FILE = "sweep.yaml", "trials.journal", "claim.lock"
STUDY = "sweep"
RANDOM_TRIALS = 5
"""Trials before the sampler or the pruner judges by earlier ones."""
FIRST_PRUNED_PART = 4
"""Tenth of its budget after which a trial may be pruned first: what learns fast at first need not end best."""
REASON = "reason"
"""Attribute of a failed trial."""


class JournalLock(JournalFileOpenLock):
    """The kernel's lock on Optuna's journal, which ends with its holder; cuts off a line that a full disk has torn."""

    def __init__(self, path: Path) -> None:
        self._path = path
        self._file: IO[bytes] | None = None

    def acquire(self) -> bool:
        """Waits for the lock."""
        self._file = self._path.open("r+b")
        fcntl.flock(self._file, fcntl.LOCK_EX)
        self._file.truncate(whole_bytes(self._file))
        return True

    def release(self) -> None:
        """Gives it back."""
        assert self._file is not None
        self._file.close()


class Study:
    """The trials of a sweep. One process works on one trial; others may do so on others."""

    def __init__(self, directory: Path, spec: SweepSpec) -> None:
        """Opens a sweep's folder, and makes it if it is new.

        Raises:
            ConfigError: If it holds another sweep, or its journal is damaged.
        """
        self.directory, self.spec = directory, spec
        directory.mkdir(parents=True, exist_ok=True)
        optuna.logging.set_verbosity(optuna.logging.WARNING)
        with self._claiming():
            self._take_up()
            journal = directory / JOURNAL_FILE
            backend = JournalFileBackend(str(journal), JournalLock(journal))
            try:
                self._study = optuna.create_study(
                    storage=optuna.storages.JournalStorage(backend),
                    study_name=STUDY,
                    direction=spec.goal,
                    pruner=optuna.pruners.MedianPruner(n_startup_trials=RANDOM_TRIALS, n_warmup_steps=FIRST_PRUNED_PART)
                    if spec.pruner == "median"
                    else optuna.pruners.NopPruner(),
                    load_if_exists=True,
                )
            except (ValueError, KeyError, TypeError, AssertionError) as error:
                raise ConfigError(f"{journal} is damaged, or none of Optuna's: {error}") from error
            if not self.trials and any(directory.glob("trial-*/")):
                raise ConfigError(
                    f"{directory} holds trials that {JOURNAL_FILE} does not know: give a --dir of its own"
                )

    @property
    def trials(self) -> list[FrozenTrial]:
        """All of them, oldest first."""
        return self._study.get_trials(deepcopy=False)

    @property
    def best(self) -> FrozenTrial | None:
        """The best of those that came to their end; None before one has."""
        with suppress(ValueError):
            return self._study.best_trial
        return None

    def run_dir(self, trial: Trial | FrozenTrial) -> Path:
        """The directory of a trial's run."""
        return self.directory / f"trial-{trial.number:04}"

    @contextmanager
    def claimed(self) -> Iterator[tuple[Trial, dict[str, Any], IO[bytes]] | None]:
        """Takes a trial up that nobody works on any more, or a new one, for as long as the context lasts.

        Yields:
            The trial, its values by key, and its log; None where all trials are taken.
        """
        with self._claiming():
            taken = self._resumed() or self._new()
        if taken is None:
            yield None
            return
        trial, log = taken
        with log:
            yield trial, {key: self._suggest(trial, key) for key in self.spec.space}, log

    def judged(self, trial: Trial) -> int:
        """The last part of its budget after which a trial was judged, 0 before the first."""
        return max(self._study.trials[trial.number].intermediate_values, default=0)

    def end(self, trial: Trial, value: float | None, *, reason: str = "", is_pruned: bool = False) -> None:
        """Records how a trial ended: with a value, pruned, or failed for a reason."""
        if reason:
            trial.set_user_attr(REASON, reason)
        state = TrialState.PRUNED if is_pruned else TrialState.COMPLETE if value is not None else TrialState.FAIL
        self._study.tell(trial, value if state is TrialState.COMPLETE else None, state=state)

    def _take_up(self) -> None:
        path = self.directory / SPEC_FILE
        if path.exists():
            before = read_spec(path).to_dict() | {"trials": self.spec.trials}
            if differing := [key for key, value in self.spec.to_dict().items() if value != before[key]]:
                raise ConfigError(
                    f"{self.directory} holds a sweep with another {', '.join(differing)}; only trials may change: "
                    "give a --dir of its own"
                )
        write_whole(path, as_yaml(self.spec.to_dict(), SPEC_FILE))

    @contextmanager
    def _claiming(self) -> Iterator[None]:
        with (self.directory / CLAIM_FILE).open("wb") as file:
            fcntl.flock(file, fcntl.LOCK_EX)
            yield

    def _resumed(self) -> tuple[Trial, IO[bytes]] | None:
        for trial in self._study.get_trials(deepcopy=False, states=(TrialState.RUNNING,)):
            if (log := self._lock(trial)) is not None:
                if self.trials[trial.number].state is TrialState.RUNNING:
                    return Trial(self._study, trial._trial_id), log
                log.close()  # Its process has ended it since the trials were read.
        return None

    def _new(self) -> tuple[Trial, IO[bytes]] | None:
        if len(self.trials) >= self.spec.trials:
            return None
        trial = self._study.ask()
        log = self._lock(trial)
        assert log is not None, "a new trial has a log that nobody holds"
        return trial, log

    def _lock(self, trial: Trial | FrozenTrial) -> IO[bytes] | None:
        """The log of a trial, locked; None where somebody else holds it. The trial's processes hold it, too."""
        log = self.run_dir(trial).with_suffix(".log").open("ab")
        try:
            fcntl.flock(log, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            log.close()
            return None
        return log

    def _suggest(self, trial: Trial, key: str) -> Any:
        """The trial's value of a key: the one it has in the journal, else a new one, whichever process draws it."""
        seed = crc32(f"{self.spec.seed} {trial.number} {key}".encode())
        self._study.sampler = (
            optuna.samplers.TPESampler(seed=seed, n_startup_trials=RANDOM_TRIALS, constant_liar=True)
            if self.spec.sampler == "tpe"
            else optuna.samplers.RandomSampler(seed=seed)
        )
        domain = self.spec.space[key]
        if not isinstance(domain, Range):
            return trial.suggest_categorical(key, domain)
        if domain.is_whole:
            return trial.suggest_int(key, int(domain.low), int(domain.high), log=domain.log)
        return trial.suggest_float(key, domain.low, domain.high, log=domain.log)
