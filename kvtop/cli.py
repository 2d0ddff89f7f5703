"""The `kvtop` command: find what to watch, and watch it."""

import stat
import sys
import time
from collections.abc import Sequence
from pathlib import Path
from typing import Annotated, Any

import typer

from kvengine.errors import ConfigError, KVError, TelemetryError
from kvengine.telemetry.reader import Attachment, RunningEngine, discover
from kvengine.telemetry.recording import Recording
from kvengine.telemetry.state import StepSnapshot, StreamState

EXIT_USAGE, EXIT_BUG, EXIT_INTERRUPTED = 2, 70, 130
FIRST_STEP_WITHIN_S = 30.0
"""How long `--once` waits for an engine to finish a step."""
NOTHING_RUNS_HINT = "start one with `kvplan run PROFILE`, or open a recording with `kvtop FILE`"

app = typer.Typer(name="kvtop", add_completion=False, context_settings={"help_option_names": ["-h", "--help"]})


@app.command()
def watch(
    target: Annotated[
        str | None,
        typer.Argument(
            metavar="TARGET",
            help="A recording or an engine's socket; without it, the engines that run on this machine.",
        ),
    ] = None,
    partial: Annotated[
        bool, typer.Option("--partial", help="Open a recording that was cut off, and show the steps up to there.")
    ] = False,
    once: Annotated[bool, typer.Option("--once", help="Print the state once, as JSON, and exit.")] = False,
    as_json: Annotated[bool, typer.Option("--json", help="The form of `--once`; there is no other yet.")] = False,
) -> int:
    """See the block pool: which request holds which block, step by step."""
    if as_json and not once:
        raise ConfigError("--json prints one state, so it goes with --once", hint="kvtop --once --json")
    if once:
        _print_once(_as_path(target), partial=partial)
        return 0
    return _show(_as_path(target), partial=partial)


def run() -> None:
    """Run the command line of this process and exit."""
    sys.exit(main(sys.argv[1:]))


def main(arguments: Sequence[str]) -> int:
    """Run one command line and return its exit code."""
    try:
        code = typer.main.get_command(app).main(list(arguments), prog_name="kvtop", standalone_mode=False)
        return code if isinstance(code, int) else 0
    except KVError as error:
        _print_error(error)
        return error.exit_code
    except _UsageProblem as error:
        _print_error(ConfigError(_usage_message(error), hint="kvtop --help"))
        return EXIT_USAGE
    except (KeyboardInterrupt, typer.Abort):
        return EXIT_INTERRUPTED
    except Exception:  # noqa: BLE001
        import traceback

        traceback.print_exc()
        return EXIT_BUG


# What typer raises for a wrong command line: it exports only the most special of these errors.
_UsageProblem: type[Exception] = next(kind for kind in typer.BadParameter.__mro__ if kind.__name__ == "ClickException")


def _usage_message(error: Any) -> str:
    return str(error.format_message())


def _print_error(error: KVError) -> None:
    sys.stderr.write(f"error: {' '.join(str(error).split())}\n")
    if error.hint:
        sys.stderr.write(f"hint: {' '.join(error.hint.split())}\n")


def _as_path(target: str | None) -> Path | None:
    if target is not None and "://" in target:
        raise TelemetryError(f"{target}: only recordings and sockets of kvengine can be watched, no addresses")
    return Path(target) if target is not None else None


def _show(target: Path | None, *, partial: bool) -> int:
    engines = [] if target is not None else _running_engines()
    only = target or (engines[0].path if len(engines) == 1 else None)
    opened = _open(only, partial=partial) if only is not None else None
    if not (sys.stdin.isatty() and sys.stderr.isatty()):  # Textual reads keys from the one and draws on the other
        if opened is not None:
            opened.close()
        raise TelemetryError("the view needs a terminal on stdin and stderr", hint="kvtop --once --json")

    from kvtop.app import KvtopApp
    from kvtop.sources.live import LiveSource
    from kvtop.sources.recording import RecordingSource

    source = RecordingSource(opened) if isinstance(opened, Recording) else LiveSource(opened) if opened else None
    view = KvtopApp(source, engines=engines)
    view.run()
    if view.failure is not None:
        raise view.failure
    return EXIT_BUG if view.return_code else 0  # Textual has printed the traceback of what went wrong


def _running_engines() -> list[RunningEngine]:
    engines = discover()
    if not engines:
        raise TelemetryError("no engine is running on this machine", hint=NOTHING_RUNS_HINT)
    return engines


def _open(target: Path, *, partial: bool) -> Recording | Attachment:
    """A recording or an engine, as the target is a file or a socket.

    Raises:
        TelemetryError: It is neither, or cannot be read.
    """
    try:
        mode = target.stat().st_mode
    except OSError as error:
        raise TelemetryError(f"{target}: {error.strerror}", hint=NOTHING_RUNS_HINT) from error
    if stat.S_ISSOCK(mode):
        return Attachment.open(target)
    if not stat.S_ISREG(mode):
        raise TelemetryError(f"{target}: neither a recording nor a socket")
    return Recording.open(target, partial=partial)


def _print_once(target: Path | None, *, partial: bool) -> None:
    if target is None:
        engines = _running_engines()
        if len(engines) > 1:
            names = ", ".join(str(engine.path) for engine in engines)
            raise TelemetryError(f"{len(engines)} engines are running: {names}", hint=f"kvtop --once {engines[0].path}")
        target = engines[0].path
    opened = _open(target, partial=partial)
    snapshot = _last_state(opened) if isinstance(opened, Recording) else _first_state(opened)

    from kvtop.state_json import state_as_json

    sys.stdout.write(state_as_json(snapshot) + "\n")


def _last_state(recording: Recording) -> StepSnapshot:
    with recording:
        return recording.read(len(recording) - 1)


def _first_state(attachment: Attachment) -> StepSnapshot:
    from kvengine.telemetry.schema import Hello

    state: StreamState | None = None
    give_up_s = time.monotonic() + FIRST_STEP_WITHIN_S
    with attachment:
        while time.monotonic() < give_up_s:
            frames = attachment.receive(0.5)
            if frames is None:
                raise TelemetryError(f"{attachment.path}: the engine went away before it finished a step")
            for frame in frames:
                if isinstance(frame, Hello):
                    state = StreamState(frame)
                elif state is not None:
                    state.apply(frame)
            if state is not None and state.is_started:
                return state.freeze()
    raise TelemetryError(f"{attachment.path}: the engine finished no step within {FIRST_STEP_WITHIN_S:g} s")
