"""The arguments of every command, on one page that imports nothing heavy: help and mistakes answer at once."""

from pathlib import Path

from minefleet.cli.argument_types import pair, positive, seed
from minefleet.cli.epilogs import describe_common_keys, describe_configs, describe_live_keys
from minefleet.cli.intermixed_argument_parser import CommandParser
from minefleet.core.role_index import HELP, read_index

NEWEST = ""
"""`--resume` without a directory."""
TRAINED_ROLES = ("parameters", "replay", "learner", "actor")


def train(parser: CommandParser) -> None:
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
    repeat = "change the keys at the iterations at which `minefleet set` changed them in another run"
    parser.add_argument("--repeat", type=Path, metavar="RUN_DIR", help=repeat)
    parser.add_argument("--serial", action="store_true", help="all roles in one process, in order, for the debugger")
    parser.add_argument("--json", action="store_true", help="end with one JSON object in a terminal, too")


def sweep(parser: CommandParser) -> None:
    """Of `minefleet sweep`."""
    what = "a YAML file with config, set, space and trials; docs/sweeps.md has all its keys"
    parser.add_argument("spec", type=Path, metavar="SPEC", help=what)
    where = "where the trials go, on machines that share them the same (default: runs/SPEC); goes on with what is there"
    parser.add_argument("--dir", type=Path, metavar="DIR", help=where)
    parser.add_argument("--json", action="store_true", help="end with one JSON object in a terminal, too")


def compare(parser: CommandParser) -> None:
    """Of `minefleet compare`."""
    what = "run directories, or folders of them, such as a sweep's"
    parser.add_argument("runs", nargs="+", type=Path, metavar="RUN", help=what)
    what = "a key of metrics.jsonl (default: episode_return_mean)"
    parser.add_argument("--objective", default="episode_return_mean", metavar="KEY", help=what)
    where = "where in the training (default: the last step that all runs have reached)"
    parser.add_argument("--env-steps", type=positive, default=0, metavar="N", help=where)
    parser.add_argument("--json", action="store_true", help="print one JSON list")


def create_run_directory(parser: CommandParser) -> None:
    """Of `minefleet prepare`."""
    _add_settings(parser)
    parser.add_argument("--run-dir", type=Path, metavar="DIR", help="the run's directory (default: runs/CONFIG)")


def serve(parser: CommandParser) -> None:
    """Of `minefleet serve`."""
    parser.add_argument("role", choices=TRAINED_ROLES)
    _add_settings(parser)
    where = "the run's directory (default: runs/CONFIG); without CONFIG, somebody else prepares the run in there"
    parser.add_argument("--run-dir", type=Path, metavar="DIR", help=where)
    parser.add_argument("--index", type=read_index, default="0", help=HELP)
    parser.add_argument("--stay", action="store_true", help="of the learner: wait where its run is over")


def host(parser: CommandParser) -> None:
    """Of `minefleet host`."""
    _add_settings(parser)
    parser.add_argument("--actor", required=True, metavar="HOST:PORT", help="the actor to play for")
    where = "where /metrics, /healthz and /readyz are (default: a free port of 127.0.0.1)"
    parser.add_argument("--metrics-address", default="127.0.0.1:0", metavar="HOST:PORT", help=where)


def set_live_keys(parser: CommandParser) -> None:
    """Of `minefleet set`."""
    parser.make_epilog = describe_live_keys
    what = "the run (default: the newest); then the keys to change"
    parser.add_argument("settings", nargs="+", metavar="RUN_DIR key=value", help=what)
    parser.add_argument("--why", default="", metavar="TEXT", help="a reason, which the run's journal keeps")


def status(parser: CommandParser) -> None:
    """Of `minefleet status`."""
    _add_run(parser)
    how = parser.add_mutually_exclusive_group()
    how.add_argument("--json", action="store_true", help="print one JSON object")
    how.add_argument("--watch", action="store_true", help="show it anew every second, until Ctrl-C")


def rollback(parser: CommandParser) -> None:
    """Of `minefleet rollback`."""
    _add_run(parser)
    what = "a checkpoint's version, or its iteration, or best (default: the last one but the newest)"
    parser.add_argument("--to", default="previous", metavar="VERSION", help=what)
    parser.add_argument("--why", default="", metavar="TEXT", help="the reason, for the journal")


def start_prometheus_grafana(parser: CommandParser) -> None:
    """Of `minefleet monitor`."""
    _add_run(parser)
    listen = "where Prometheus serves (default: 127.0.0.1:9090)"
    parser.add_argument("--listen", default="127.0.0.1:9090", metavar="HOST:PORT", help=listen)
    listen = "where Grafana serves (default: 127.0.0.1:3000)"
    parser.add_argument("--grafana-listen", default="127.0.0.1:3000", metavar="HOST:PORT", help=listen)


def watch(parser: CommandParser) -> None:
    """Of `minefleet watch`."""
    what = "run directories, or folders of them (default: runs)"
    parser.add_argument("runs", nargs="*", type=Path, metavar="RUN", help=what)
    listen = "where to serve; others than this machine need the token (default: 127.0.0.1:8800)"
    parser.add_argument("--listen", default="127.0.0.1:8800", metavar="HOST:PORT", help=listen)
    parser.add_argument("--token", default="", help="what others must show (default: a new one)")
    parser.add_argument("--no-browser", action="store_true", help="leave the browser alone")


def evaluate(parser: CommandParser) -> None:
    """Of `minefleet eval`."""
    what = "a checkpoint, an exported version, or a run for its last checkpoint (default: the newest run)"
    parser.add_argument("checkpoint", nargs="?", type=Path, help=what)
    parser.add_argument("--episodes", type=positive, default=100, metavar="N", help="how many (default: 100)")
    parser.add_argument("--seed", type=seed, help="seed of environments and sampling")
    parser.add_argument("--sample", action="store_true", help="sample actions instead of taking the likeliest")
    parser.add_argument("--random", action="store_true", help="play a freshly initialised policy, sampling")
    parser.add_argument("--json", action="store_true", help="print one JSON object")
    parser.add_argument("--video", type=Path, metavar="DIR", help="also film one of the episodes, there")


def env(parser: CommandParser) -> None:
    """Of `minefleet env`."""
    _add_settings(parser, or_run=True)
    parser.add_argument("--steps", type=positive, default=1000, metavar="N", help="how many (default: 1000)")
    parser.add_argument("--seed", type=seed, help="seed of the environment and of the actions (default: the run's)")
    parser.add_argument("--noop-actions", action="store_true", help="take the action of zeros instead of random ones")
    parser.add_argument("--inline", action="store_true", help="play in one process, for a debugger: a hang is a hang")
    again = "make the environment that died, and play the actions that led there; CONFIG is the run's"
    parser.add_argument("--replay", type=Path, metavar="DEATH", help=again)


def deaths(parser: CommandParser) -> None:
    """Of `minefleet deaths`."""
    _add_run(parser)
    what = "the beginning of a group's name, or of a death's, of which the last is shown"
    parser.add_argument("which", nargs="?", default="", metavar="GROUP|DEATH", help=what)
    parser.add_argument("--json", action="store_true", help="print one JSON list")


def replay(parser: CommandParser) -> None:
    """Of `minefleet replay`."""
    parser.set_defaults(stream="", limit=None)
    actions = _add_actions(
        parser,
        stats="the ledger, what is held, and how large it is",
        why_dropped="why fragments left, the latest first",
        fsck="verify every row and every byte of a stopped run; changes nothing",
        export="write fragments as NumPy files into DIR",
    )
    actions["export"].add_argument("target", type=Path, metavar="DIR", help="where to write them")
    for action in actions.values():
        _add_run(action)
        action.add_argument("--json", action="store_true", help="print one JSON object")
    for name, default in (("why-dropped", 100), ("export", None)):
        actions[name].add_argument("--stream", default="", metavar="S", help="only of this stream")
        most = f"at most so many (default: {default or 'all'})"
        actions[name].add_argument("--limit", type=positive, default=default, metavar="N", help=most)


def parameters(parser: CommandParser) -> None:
    """Of `minefleet parameters`."""
    parser.set_defaults(version=0, target=None)
    actions = _add_actions(
        parser,
        list="the versions that can be fetched",
        pin="keep a version whatever its age",
        unpin="let a version expire again",
        export="write a version into DIR: model.safetensors, version.json and config.yaml",
    )
    actions["export"].add_argument("target", type=Path, metavar="DIR", help="where to write it")
    for name, action in actions.items():
        _add_run(action)
        action.add_argument("--json", action="store_true", help="print one JSON object")
        if name != "list":
            which = "the version (default: the newest)"
            action.add_argument("--version", type=positive, default=0, metavar="N", help=which)


def upload_run_snapshot(parser: CommandParser) -> None:
    """Of `minefleet snapshot`."""
    parser.add_argument("run_dir", type=Path, metavar="RUN_DIR", help="the run")
    parser.add_argument("target", metavar="TARGET", help="where to, as s3://BUCKET/RUN; its older snapshot is replaced")


def restore(parser: CommandParser) -> None:
    """Of `minefleet restore`."""
    parser.add_argument("source", metavar="SOURCE", help="the place of a snapshot, as s3://BUCKET/RUN")
    parser.add_argument("run_dir", type=Path, metavar="RUN_DIR", help="the run directory to make")
    parser.add_argument("--if-needed", action="store_true", help="only if RUN_DIR has no run, and SOURCE a snapshot")


def certs(parser: CommandParser) -> None:
    """Of `minefleet certs`."""
    actions = _add_actions(
        parser, init="make an authority, and a certificate for each role", issue="make a new certificate for a role"
    )
    for action in actions.values():
        action.add_argument("directory", type=Path, metavar="DIR", help="where the authority lies")
        action.add_argument("--days", type=int, default=365, help="how long certificates are valid (default: 365)")
    keep = "take the authority that is there, and make new certificates of it"
    actions["init"].add_argument("--keep-authority", action="store_true", help=keep)
    actions["issue"].add_argument("role", metavar="ROLE", help="actor, host, learner, operator, parameters or replay")
    out = "where to write (default: DIR/ROLE)"
    actions["issue"].add_argument("--out", type=Path, metavar="FOLDER", help=out)


def vpt(parser: CommandParser) -> None:
    """Of `minefleet vpt`."""
    into = "write MODEL and WEIGHTS into OUT: architecture.json and model.safetensors, from which no code can run"
    convert = _add_actions(parser, convert=into)["convert"]
    convert.add_argument("model", metavar="MODEL", help="a `.model` file, or 1x, 2x or 3x")
    convert.add_argument("weights", type=Path, metavar="WEIGHTS", help="a `.weights`, `.ckpt` or `.safetensors` file")
    convert.add_argument("out", type=Path, metavar="OUT", help="the directory to write")


def config(parser: CommandParser) -> None:
    """Of `minefleet config`."""
    parser.set_defaults(diff=False)
    actions = _add_actions(
        parser,
        show="every key of CONFIG with its value",
        resolve="what run.yaml would hold",
        explain="what a key means; without one, all",
    )
    differing = "show only what differs from the defaults or the preset, and who says so"
    actions["show"].add_argument("--diff", action="store_true", help=differing)
    key = "a key, as train_config.discount, a section, or the name that others have for it"
    actions["explain"].add_argument("key", nargs="?", default="", metavar="KEY", help=key)
    for action in actions.values():
        _add_settings(action)


def doctor(parser: CommandParser) -> None:
    """Of `minefleet doctor`."""
    _add_settings(parser)


def demo(parser: CommandParser) -> None:
    """Of `minefleet demo`."""
    parser.add_argument("--minutes", type=float, default=2.5, help="how long to train (default: 2.5)")
    parser.add_argument("--run-dir", type=Path, metavar="DIR", help="where the run goes (default: runs/demo-TIME)")


def _add_actions(parser: CommandParser, **actions: str) -> dict[str, CommandParser]:
    """Adds the word that says what to do, with what each choice means; returns the parser of each."""
    choice = parser.add_subparsers(dest="action", required=True, metavar="ACTION", title="actions")
    named = {name.replace("_", "-"): purpose for name, purpose in actions.items()}
    return {name: choice.add_parser(name, help=purpose, description=purpose) for name, purpose in named.items()}


def _add_run(parser: CommandParser) -> None:
    parser.add_argument("run_dir", nargs="?", type=Path, metavar="RUN_DIR", help="the run (default: the newest)")


def _add_settings(parser: CommandParser, *, or_run: bool = False, shows_keys: bool = False) -> None:
    """Adds `CONFIG [key=value ...]`; CONFIG may be a run directory where the command looks for one."""
    run = ", or a run directory" if or_run else ""
    parser.make_epilog = lambda: describe_configs() + (describe_common_keys() if shows_keys else "")
    parser.add_argument(
        "settings", nargs="*", metavar="CONFIG key=value", help=f"see below{run}; then any keys to override"
    )
    parser.add_argument(
        "--map-path",
        action="append",
        default=[],
        type=pair,
        metavar="OLD=NEW",
        help="paths below OLD, of weights and results, lie below NEW here; may be given several times",
    )
