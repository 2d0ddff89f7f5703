"""The `kvtop` command: find what to watch, and watch it."""

import sys
from collections.abc import Sequence
from typing import TYPE_CHECKING, Annotated

import typer

from kvengine.command_line import EXIT_BUG, exit_code_of, prepare_streams, usage_problem_of, version_text
from kvengine.errors import ConfigError, DeviceError, TelemetryError
from kvengine.plain_text import plain_json
from kvengine.telemetry.reader import Attachment
from kvengine.telemetry.recording import Recording
from kvtop.targets import TOKEN_VARIABLE, EventsWanted, Opened, Server, open_target, running_engines

if TYPE_CHECKING:
    from kvtop.sources.base import Source

app = typer.Typer(name="kvtop", add_completion=False, context_settings={"help_option_names": ["-h", "--help"]})


def _show_version(wanted: bool) -> None:
    if wanted:
        sys.stdout.write(f"{version_text('kvtop')}\n")
        raise typer.Exit


@app.command()
def watch(
    target: Annotated[
        str | None,
        typer.Argument(
            metavar="TARGET",
            help="A recording, an engine's socket, or http://HOST:PORT of a vLLM or SGLang server; without it, the "
            f"engines that run on this machine. ${TOKEN_VARIABLE} holds a server's bearer token.",
        ),
    ] = None,
    kv_events: Annotated[
        str | None,
        typer.Option(
            "--kv-events",
            metavar="ADDRESS",
            help="Where a server publishes its KV events, tcp://HOST:PORT of its first rank; the server is asked if "
            "this is left out.",
        ),
    ] = None,
    kv_events_replay: Annotated[
        str | None,
        typer.Option("--kv-events-replay", metavar="ADDRESS", help="Where missed KV events can be asked for."),
    ] = None,
    no_kv_events: Annotated[
        bool, typer.Option("--no-kv-events", help="Do not listen to a server's KV events.")
    ] = False,
    demo: Annotated[
        bool, typer.Option("--demo", help="Watch guided scenes, acted out by an engine without a model.")
    ] = False,
    partial: Annotated[
        bool, typer.Option("--partial", help="Open a recording that was cut off, and show the steps up to there.")
    ] = False,
    once: Annotated[bool, typer.Option("--once", help="Print the state once, as JSON, and exit.")] = False,
    as_json: Annotated[bool, typer.Option("--json", help="The form of `--once`; there is no other yet.")] = False,
    _version: Annotated[
        bool, typer.Option("--version", callback=_show_version, is_eager=True, help="Print the version and exit.")
    ] = False,
) -> int:
    """See the block pool: which request holds which block, step by step."""
    if as_json and not once:
        raise ConfigError("--json prints one state, so it goes with --once", hint="kvtop --once --json")
    events = EventsWanted(live=kv_events, replay=kv_events_replay, is_off=no_kv_events)
    _check_events(events)
    if demo:
        if target is not None or once:
            raise ConfigError("--demo brings its own engine: it takes no TARGET and no --once")
        return _show_demo()
    if once:
        _print_once(target, partial=partial, events=events)
        return 0
    return _show(target, partial=partial, events=events)


def run() -> None:
    """Run the command line of this process and exit."""
    prepare_streams()
    sys.exit(main(sys.argv[1:]))


def main(arguments: Sequence[str]) -> int:
    """Run one command line and return its exit code."""

    def command() -> object:
        return typer.main.get_command(app).main(list(arguments), prog_name="kvtop", standalone_mode=False)

    return exit_code_of("kvtop", command, usage_problem=usage_problem_of(typer.BadParameter))


def _check_events(events: EventsWanted) -> None:
    if events.is_off and events.live is not None:
        raise ConfigError("--kv-events and --no-kv-events exclude each other")
    if events.replay is not None and events.live is None:
        raise ConfigError("--kv-events-replay goes with --kv-events, the address of the live events")
    for option, address in (("--kv-events", events.live), ("--kv-events-replay", events.replay)):
        if address is not None and not address.startswith(("tcp://", "ipc://")):
            raise ConfigError(f"{option}: expected an address such as tcp://127.0.0.1:5557, got {address!r}")
    if events.live is not None:
        _require_zmq()


def _require_zmq() -> None:
    from importlib.util import find_spec

    if find_spec("zmq") is None:
        raise DeviceError(
            "listening to KV events needs pyzmq, which is not installed", hint="pip install 'pagedkv[events]'"
        )


def _show(target: str | None, *, partial: bool, events: EventsWanted) -> int:
    engines = [] if target is not None or events.live is not None else running_engines()
    only = str(engines[0].path) if len(engines) == 1 else target
    opened = _open(only, partial=partial, events=events)
    try:
        _require_terminal()
    except TelemetryError:
        if isinstance(opened, Recording | Attachment):
            opened.close()
        raise

    from kvtop.app import KvtopApp

    view = KvtopApp(_as_source(opened) if opened is not None else None, engines=engines)
    view.run()
    if view.failure is not None:
        raise view.failure
    return EXIT_BUG if view.return_code else 0  # Textual has printed the traceback of what went wrong


def _show_demo() -> int:
    _require_terminal()
    from kvtop.app import KvtopApp
    from kvtop.demo_process import DemoProcess
    from kvtop.sources.live import LiveSource

    with DemoProcess() as process:
        view = KvtopApp(LiveSource(process.attach(), reattach=process.attach))
        view.run()
    return EXIT_BUG if view.return_code else 0


def _require_terminal() -> None:
    if not (sys.stdin.isatty() and sys.stderr.isatty()):  # Textual reads keys from the one and draws on the other
        raise TelemetryError("the view needs a terminal on stdin and stderr", hint="kvtop --once --json")


def _open(target: str | None, *, partial: bool, events: EventsWanted) -> Opened | None:
    if target is not None:
        return open_target(target, partial=partial, events=events)
    return Server(endpoint=None, events=events) if events.live is not None else None


def _as_source(opened: Opened) -> "Source":
    match opened:
        case Recording():
            from kvtop.sources.recording import RecordingSource

            return RecordingSource(opened)
        case Attachment():
            from kvtop.sources.live import LiveSource

            return LiveSource(opened)
        case Server():
            from kvtop.sources.server import ServerSource

            return ServerSource(opened)


def _print_once(target: str | None, *, partial: bool, events: EventsWanted) -> None:
    if target is None and events.live is None:
        engines = running_engines()
        if len(engines) > 1:
            names = ", ".join(str(engine.path) for engine in engines)
            raise TelemetryError(f"{len(engines)} engines are running: {names}", hint=f"kvtop --once {engines[0].path}")
        target = str(engines[0].path)
    opened = _open(target, partial=partial, events=events)
    assert opened is not None, "there is a target, or an address of events"

    from kvtop.once import once_as_json

    sys.stdout.write(plain_json(once_as_json(opened)) + "\n")
