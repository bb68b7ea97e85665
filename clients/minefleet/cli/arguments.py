"""The arguments of every command, on one page that imports nothing heavy: help and mistakes answer at once."""

import argparse
import textwrap
from pathlib import Path

from minefleet.core.role_index import HELP, read_index
from minefleet.presets import presets

NEWEST = ""
"""`--resume` without a directory."""
TRAINED_ROLES = ("parameters", "replay", "learner", "actor")
EPILOG = """\
CONFIG is one of:
  CartPole-v1         the id of any Gymnasium environment, also ALE/Pong-v5 and module:Id-v0;
                      settings are those of the preset that trains it, where there is one
  my.yaml, my.py      a file
  a preset            {presets}
  nothing             where env.id=... or env.generator=... is among the overrides

Keys are written as in seed=3 stop.env_steps=1e6 train_config.learning_rate=1e-4.
`minefleet config explain` lists all of them, `minefleet config explain KEY` says what one means."""
COMMON_KEYS = (
    *("seed", "stop.env_steps", "stop.minutes", "stop.episode_return"),
    *("rollout_config.num_rollout_workers", "rollout_config.worker_config.num_envs", "rollout_config.fragment_length"),
    *("train_config.learning_rate", "train_config.batch_size_per_gpu", "train_config.batches_per_iteration"),
    *("train_config.epochs_per_iteration", "train_config.discount", "train_config.gae_lambda"),
    *("train_config.ppo_clip", "train_config.ppo_vf_coef", "train_config.entropy_bonus_coef"),
    *("policy.hidden_size", "policy.gru_size", "env.wrappers.frame_stack", "eval_interval"),
)
"""Keys that people turn most."""


def train(parser: argparse.ArgumentParser) -> None:
    """Of `minefleet train`."""
    _add_settings(parser, shows_keys=True)
    parser.add_argument("--run-dir", type=Path, metavar="DIR", help="where the run goes (default: runs/CONFIG-TIME)")
    parser.add_argument(
        "--resume",
        nargs="?",
        const=NEWEST,
        metavar="DIR",
        help="go on with the run in DIR, by default the newest, with its configuration and the overrides",
    )
    parser.add_argument("--serial", action="store_true", help="all roles in one process, in order, for the debugger")
    parser.add_argument("--json", action="store_true", help="end with one JSON object in a terminal, too")


def prepare(parser: argparse.ArgumentParser) -> None:
    """Of `minefleet prepare`."""
    _add_settings(parser)
    parser.add_argument("--run-dir", type=Path, metavar="DIR", help="the run's directory (default: runs/CONFIG)")


def serve(parser: argparse.ArgumentParser) -> None:
    """Of `minefleet serve`."""
    parser.add_argument("role", choices=TRAINED_ROLES)
    _add_settings(parser)
    where = "the run's directory (default: runs/CONFIG); without CONFIG, somebody else prepares the run in there"
    parser.add_argument("--run-dir", type=Path, metavar="DIR", help=where)
    parser.add_argument("--index", type=read_index, default="0", help=HELP)


def status(parser: argparse.ArgumentParser) -> None:
    """Of `minefleet status`."""
    parser.add_argument("run_dir", nargs="?", type=Path, metavar="RUN_DIR", help="the run (default: the newest)")
    how = parser.add_mutually_exclusive_group()
    how.add_argument("--json", action="store_true", help="print one JSON object")
    how.add_argument("--watch", action="store_true", help="show it anew every second, until Ctrl-C")


def monitor(parser: argparse.ArgumentParser) -> None:
    """Of `minefleet monitor`."""
    parser.add_argument("run_dir", nargs="?", type=Path, metavar="RUN_DIR", help="the run (default: the newest)")
    listen = "where Prometheus serves (default: 127.0.0.1:9090)"
    parser.add_argument("--listen", default="127.0.0.1:9090", metavar="HOST:PORT", help=listen)


def watch(parser: argparse.ArgumentParser) -> None:
    """Of `minefleet watch`."""
    what = "run directories, or folders of them (default: runs)"
    parser.add_argument("runs", nargs="*", type=Path, metavar="RUN", help=what)
    listen = "where to serve; others than this machine need the token (default: 127.0.0.1:8800)"
    parser.add_argument("--listen", default="127.0.0.1:8800", metavar="HOST:PORT", help=listen)
    parser.add_argument("--token", default="", help="what others must show (default: a new one)")
    parser.add_argument("--no-browser", action="store_true", help="leave the browser alone")


def evaluate(parser: argparse.ArgumentParser) -> None:
    """Of `minefleet eval`."""
    parser.add_argument(
        "checkpoint",
        nargs="?",
        type=Path,
        help="a checkpoint, an exported version, or a run for its last checkpoint (default: the newest run)",
    )
    parser.add_argument("--episodes", type=positive, default=100, metavar="N", help="how many (default: 100)")
    parser.add_argument("--seed", type=_seed, help="seed of environments and sampling")
    parser.add_argument("--sample", action="store_true", help="sample actions instead of taking the likeliest")
    parser.add_argument("--random", action="store_true", help="play a freshly initialised policy, sampling")
    parser.add_argument("--json", action="store_true", help="print one JSON object")
    parser.add_argument("--video", type=Path, metavar="DIR", help="also film one of the episodes, there")


def env(parser: argparse.ArgumentParser) -> None:
    """Of `minefleet env`."""
    _add_settings(parser, or_run=True)
    parser.add_argument("--steps", type=positive, default=1000, metavar="N", help="how many (default: 1000)")
    parser.add_argument("--seed", type=_seed, help="seed of the environment and of the actions (default: the run's)")
    parser.add_argument("--noop-actions", action="store_true", help="take the action of zeros instead of random ones")
    parser.add_argument("--inline", action="store_true", help="play in one process, for a debugger: a hang is a hang")


def replay(parser: argparse.ArgumentParser) -> None:
    """Of `minefleet replay`."""
    _add_action(
        parser,
        stats="the ledger, what is held, and how large it is",
        why_dropped="why fragments left, the latest first",
        fsck="verify every row and every byte of a stopped run; changes nothing",
        export="write fragments as NumPy files into DIR",
    )
    paths = "for export the directory to write; the run (default: the newest)"
    parser.add_argument("paths", nargs="*", type=Path, metavar="PATH", help=paths)
    parser.add_argument("--json", action="store_true", help="print one JSON object")
    parser.add_argument("--stream", default="", metavar="S", help="only of this stream (why-dropped, export)")
    parser.add_argument(
        "--limit", type=positive, metavar="N", help="at most so many (why-dropped: departures, 100; export: fragments)"
    )


def parameters(parser: argparse.ArgumentParser) -> None:
    """Of `minefleet parameters`."""
    _add_action(
        parser,
        list="the versions that can be fetched",
        pin="keep a version whatever its age",
        unpin="let a version expire again",
        export="write a version into DIR: model.safetensors, version.json and config.yaml",
    )
    parser.add_argument(
        "words",
        nargs="*",
        metavar="WORD",
        help="for pin and unpin the version (default: the newest); for export the directory to write; "
        "then the run (default: the newest)",
    )
    parser.add_argument("--version", type=positive, metavar="N", help="the version to export (default: the newest)")
    parser.add_argument("--json", action="store_true", help="print one JSON object")


def certs(parser: argparse.ArgumentParser) -> None:
    """Of `minefleet certs`."""
    _add_action(
        parser,
        init="make an authority, and a certificate for each role",
        issue="make a new certificate for a role",
    )
    parser.add_argument("directory", type=Path, metavar="DIR", help="where the authority lies")
    role = "for `issue`: actor, learner, operator, ..."
    parser.add_argument("role", nargs="?", default="", metavar="ROLE", help=role)
    parser.add_argument("--days", type=int, default=365, help="how long certificates are valid (default: 365)")
    keep = "for `init`: take the authority that is there, and make new certificates of it"
    parser.add_argument("--keep-authority", action="store_true", help=keep)
    parser.add_argument("--out", type=Path, metavar="FOLDER", help="where `issue` writes (default: DIR/ROLE)")


def vpt(parser: argparse.ArgumentParser) -> None:
    """Of `minefleet vpt`."""
    into = "write MODEL and WEIGHTS into OUT: architecture.json and model.safetensors, from which no code can run"
    _add_action(parser, convert=into)
    parser.add_argument("model", metavar="MODEL", help="a `.model` file, or 1x, 2x or 3x")
    parser.add_argument("weights", type=Path, metavar="WEIGHTS", help="a `.weights`, `.ckpt` or `.safetensors` file")
    parser.add_argument("out", type=Path, metavar="OUT", help="the directory to write")


def config(parser: argparse.ArgumentParser) -> None:
    """Of `minefleet config`."""
    _add_action(
        parser,
        show="every key of CONFIG with its value",
        resolve="what run.yaml would hold",
        explain="what a key means, as in `config explain train_config.discount [CONFIG]`; without a key, lists all",
    )
    differing = "show only what differs from the defaults or the preset, and who says so"
    parser.add_argument("--diff", action="store_true", help=differing)
    _add_settings(parser)


def doctor(parser: argparse.ArgumentParser) -> None:
    """Of `minefleet doctor`."""
    _add_settings(parser)


def demo(parser: argparse.ArgumentParser) -> None:
    """Of `minefleet demo`."""
    parser.add_argument("--minutes", type=float, default=2.5, help="how long to train (default: 2.5)")
    parser.add_argument("--run-dir", type=Path, metavar="DIR", help="where the run goes (default: runs/demo-TIME)")


def _add_action(parser: argparse.ArgumentParser, **actions: str) -> None:
    """Adds the word that says what to do, with what each choice means."""
    named = {name.replace("_", "-"): purpose for name, purpose in actions.items()}
    text = "; ".join(f"{name}: {purpose}" for name, purpose in named.items())
    parser.add_argument("action", choices=tuple(named), help=text)


def _add_settings(parser: argparse.ArgumentParser, *, or_run: bool = False, shows_keys: bool = False) -> None:
    """Adds `CONFIG [key=value ...]`; CONFIG may be a run directory where the command looks for one."""
    run = ", or a run directory" if or_run else ""
    parser.formatter_class = argparse.RawDescriptionHelpFormatter
    names = textwrap.fill(", ".join(presets()), 100, initial_indent=" " * 22, subsequent_indent=" " * 22).strip()
    parser.epilog = EPILOG.format(presets=names) + (_common_keys() if shows_keys else "")
    parser.add_argument(
        "settings", nargs="*", metavar="CONFIG key=value", help=f"see below{run}; then any keys to override"
    )
    parser.add_argument(
        "--map-path",
        action="append",
        default=[],
        type=_pair,
        metavar="OLD=NEW",
        help="paths below OLD, of weights and results, lie below NEW here; may be given several times",
    )


def _common_keys() -> str:
    """The keys that people turn most, with their defaults and the beginnings of their meanings."""
    from minefleet.config.key_docs import key_docs

    found = {key.path: key for key in key_docs() if key.path in COMMON_KEYS}
    lines = (
        f"  {path}={found[path].default}\n      {textwrap.shorten(found[path].meaning, 100, placeholder=' …')}"
        for path in COMMON_KEYS
    )
    return "\n".join(("\n\nKeys that people turn most, with the defaults where no preset has others:", *lines))


def _pair(text: str) -> tuple[str, str]:
    """OLD and NEW; NEW is taken from the current folder."""
    old, equals, new = text.partition("=")
    if not old or not equals or not new:
        raise argparse.ArgumentTypeError(f"must be OLD=NEW, got {text!r}")
    return old, str(Path(new).expanduser().absolute())


def positive(text: str) -> int:
    """Parses an integer >= 1."""
    number = int(text)
    if number < 1:
        raise argparse.ArgumentTypeError(f"must be >= 1, got {number}")
    return number


def _seed(text: str) -> int:
    """Parses a seed, in [0, 2**63)."""
    number = int(text)
    if not 0 <= number < 2**63:
        raise argparse.ArgumentTypeError(f"must be in [0, 2**63), got {number}")
    return number
