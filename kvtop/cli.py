"""The `kvtop` command: find what to watch, and watch it."""

import os
import sys
from collections.abc import Sequence
from importlib.util import find_spec
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from kvengine.command_line import EXIT_BUG, exit_code_of, prepare_streams, usage_problem_of, version_text
from kvengine.errors import ConfigError, DeviceError, KVError, TelemetryError
from kvengine.plain_text import plain, plain_json
from kvengine.telemetry.engine_list import EngineList
from kvengine.telemetry.reader import Attachment
from kvengine.telemetry.recording import Recording
from kvtop.places import Place
from kvtop.targets import (
    TOKEN_VARIABLE,
    EventsWanted,
    Opened,
    Server,
    check_events,
    open_target,
    running_engines,
    source_of,
)

if TYPE_CHECKING:
    from kvtop.sources.base import Source

DUMP_SIZE = "120x40"
DEFAULT_PORT = 8765
SMALLEST, LARGEST = 20, 1000
"""Columns or lines of a screen that is dumped."""

app = typer.Typer(name="kvtop", add_completion=False, context_settings={"help_option_names": ["-h", "--help"]})


def _show_version(wanted: bool) -> None:
    if wanted:
        sys.stdout.write(f"{version_text('kvtop')}\n")
        raise typer.Exit


@app.command()
def watch(
    context: typer.Context,
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
    ca_file: Annotated[
        Path | None,
        typer.Option(
            "--ca-file",
            metavar="FILE",
            help="Certificates (PEM) to trust for https:// instead of the system's; SSL_CERT_FILE does the same.",
        ),
    ] = None,
    compare: Annotated[
        str | None,
        typer.Option("--compare", metavar="TARGET", help="Show another target beside it; recordings move together."),
    ] = None,
    demo: Annotated[
        bool, typer.Option("--demo", help="Watch guided scenes, acted out by an engine without a model.")
    ] = False,
    serve: Annotated[
        bool,
        typer.Option("--serve", help="Show the view to browsers on this machine instead, on the loopback address."),
    ] = False,
    port: Annotated[int, typer.Option("--port", min=1, max=65535, help="Where `--serve` listens.")] = DEFAULT_PORT,
    partial: Annotated[
        bool, typer.Option("--partial", help="Open a recording that was cut off, and show the steps up to there.")
    ] = False,
    at: Annotated[
        str | None,
        typer.Option("--at", metavar="PLACE", help="Where to begin in a recording: a time (12.5s) or a step (#120)."),
    ] = None,
    record: Annotated[
        Path | None,
        typer.Option(
            "--record",
            metavar="FILE",
            help="Record what is shown; without a terminal, record only, until the engine ends. A server's answers "
            "become lines of JSON.",
        ),
    ] = None,
    once: Annotated[bool, typer.Option("--once", help="Print the state once, as JSON, and exit.")] = False,
    as_json: Annotated[bool, typer.Option("--json", help="The form of `--once`; there is no other.")] = False,
    dump: Annotated[bool, typer.Option("--dump", help="Print the text of the screen once, and exit.")] = False,
    size: Annotated[
        str, typer.Option("--size", metavar="COLUMNSxLINES", help="Of the screen that `--dump` prints.")
    ] = DUMP_SIZE,
    _version: Annotated[
        bool, typer.Option("--version", callback=_show_version, is_eager=True, help="Print the version and exit.")
    ] = False,
) -> int:
    """See the block pool: which request holds which block, step by step."""
    if as_json and not once:
        raise ConfigError("--json prints one state, so it goes with --once", hint="kvtop --once --json")
    _check_exclusive({"--once": once, "--dump": dump, "--record": record is not None})
    _check_exclusive({"--compare": compare is not None, "--once": once, "--record": record is not None})
    if compare is not None and target is None:
        raise ConfigError("--compare needs a TARGET to compare with", hint=f"kvtop TARGET --compare {compare}")
    events = EventsWanted(live=kv_events, replay=kv_events_replay, is_off=no_kv_events)
    check_events(events)
    place, dump_size = _parse_place(at), _parse_size(size)
    if serve:
        _check_exclusive({"--serve": True, "--once": once, "--dump": dump, "--record": record is not None})
        _check_target(target, partial=partial)
        return _serve(context.obj, port)
    if demo:
        if target is not None or once or dump or compare:
            raise ConfigError("--demo brings its own engine: it takes no TARGET, --compare, --once or --dump")
        return _show_demo(record)
    engines = EngineList()
    opened = _open(target, engines, partial=partial, events=events, ca_file=ca_file, must_run=once or dump)
    other: Opened | None = None
    try:
        if place is not None and not isinstance(opened, Recording):
            raise ConfigError("--at is a place in a recording", hint="kvtop FILE --at 12.5s")
        if once:
            return _print_once(opened, place)
        if compare is not None:
            other = open_target(compare, partial=partial, ca_file=ca_file if compare.startswith("https:") else None)
        if dump:
            return _print_dump(opened, other, place, dump_size)
        if other is not None:
            return _show_both(opened, other, place)
        return _show(opened, engines, target, place, record)
    except KVError:
        for each in (opened, other):
            if isinstance(each, Recording | Attachment):
                each.close()
        raise


def run() -> None:
    """Run the command line of this process and exit."""
    prepare_streams()
    sys.exit(main(sys.argv[1:]))


def main(arguments: Sequence[str]) -> int:
    """Run one command line and return its exit code."""

    def command() -> object:
        return typer.main.get_command(app).main(
            list(arguments), prog_name="kvtop", standalone_mode=False, obj=list(arguments)
        )

    return exit_code_of("kvtop", command, usage_problem=usage_problem_of(typer.BadParameter))


# What was typed.


def _check_exclusive(given: dict[str, bool]) -> None:
    names = [name for name, is_given in given.items() if is_given]
    if len(names) > 1:
        raise ConfigError(f"{names[0]} and {names[1]} exclude each other")


def _parse_place(text: str | None) -> Place | None:
    try:
        return Place.parse(text) if text is not None else None
    except ConfigError as error:
        raise ConfigError(f"--at: {error.message}") from None


def _parse_size(text: str) -> tuple[int, int]:
    columns, _, lines = text.partition("x")
    if columns.isdecimal() and lines.isdecimal():
        size = int(columns), int(lines)
        if all(SMALLEST <= length <= LARGEST for length in size):
            return size
    raise ConfigError(f"--size: expected COLUMNSxLINES of {SMALLEST} to {LARGEST} each, such as 120x40, got {text!r}")


def _open(
    target: str | None,
    engines: EngineList,
    *,
    partial: bool,
    events: EventsWanted,
    ca_file: Path | None,
    must_run: bool,
) -> Opened | None:
    """What to watch; None to wait for an engine, or to choose among several."""
    if target is not None:
        return open_target(target, partial=partial, events=events, ca_file=ca_file)
    if ca_file is not None:
        raise ConfigError("--ca-file is for https:// addresses", hint="kvtop https://HOST:PORT --ca-file FILE")
    if events.live is not None:
        return Server(endpoint=None, events=events)
    running = running_engines(engines) if must_run else engines.look()
    if len(running) > 1 and must_run:
        names = ", ".join(str(engine.path) for engine in running)
        raise TelemetryError(f"{len(running)} engines are running: {names}", hint=f"kvtop {running[0].path} --once")
    if len(running) != 1:
        return None
    try:
        return Attachment.open(running[0].path)
    except TelemetryError:
        if must_run:
            raise
        return None  # gone since it was listed: the next one is waited for


# What is done with it.


def _show(
    opened: Opened | None, engines: EngineList, target: str | None, place: Place | None, record: Path | None
) -> int:
    """Open the view; where there is no terminal, only record."""
    is_choice = opened is None and len(engines.look()) > 1
    if record is not None and (is_choice or isinstance(opened, Recording)):
        reason = "several engines run" if is_choice else f"{target} is a recording already"
        raise ConfigError(f"--record: {reason}", hint="kvtop SOCKET --record FILE")
    if record is not None and not _has_terminal():
        if opened is None:
            raise TelemetryError("no engine is running on this machine, so there is nothing to record")
        return _record_only(opened, record)
    _require_terminal()

    from kvtop.app import KvtopApp, user_config

    config = user_config()
    follows = engines if target is None else None
    source = None if is_choice else source_of(opened, engines=follows, at=place)
    if source is not None and record is not None:
        source.record(record)
    view = KvtopApp(source, engines=follows, config=config)
    view.run()
    return EXIT_BUG if view.return_code else 0  # Textual has printed the traceback of what went wrong


def _show_both(opened: Opened | None, other: Opened, place: Place | None) -> int:
    _require_terminal()
    from kvtop.app import KvtopApp, user_config

    view = KvtopApp(_start_at(opened, place), other=_start_at(other, place), config=user_config())
    view.run()
    return EXIT_BUG if view.return_code else 0


def _start_at(opened: Opened | None, place: Place | None) -> "Source":
    return source_of(opened, at=place if isinstance(opened, Recording) else None)


def _show_demo(record: Path | None) -> int:
    _require_terminal()
    from kvtop.app import KvtopApp, user_config
    from kvtop.demo_process import DemoProcess
    from kvtop.sources.live import LiveSource

    config = user_config()
    with DemoProcess() as process:
        source = LiveSource(process.attach(), following=process)
        source.record(record)
        view = KvtopApp(source, config=config)
        view.run()
    return EXIT_BUG if view.return_code else 0


def _check_target(target: str | None, *, partial: bool) -> None:
    """Refuse what no page could open."""
    if target is not None:
        opened = open_target(target, partial=partial)
        if isinstance(opened, Recording | Attachment):
            opened.close()


def _serve(arguments: Sequence[str], port: int) -> int:
    if find_spec("textual_serve") is None:
        raise DeviceError(
            "showing the view in a browser needs textual-serve, which is not installed",
            hint="pip install 'pagedkv[browser]'",
        )
    from kvtop.browser.serve import serve

    serve(_without_serve(arguments), port)
    return 0


def _without_serve(arguments: Sequence[str]) -> list[str]:
    """The command line of each page: all but that it is served, and where."""
    kept: list[str] = []
    is_value = False
    for argument in arguments:
        if is_value or argument == "--serve" or argument.startswith("--port="):
            is_value = False
        elif argument == "--port":
            is_value = True
        else:
            kept.append(argument)
    return kept


def _print_once(opened: Opened | None, place: Place | None) -> int:
    from kvtop.once import once_as_json

    assert opened is not None, "an engine runs, or there is another target"
    sys.stdout.write(plain_json(once_as_json(opened, at=place)) + "\n")
    return 0


def _print_dump(opened: Opened | None, other: Opened | None, place: Place | None, size: tuple[int, int]) -> int:
    from kvtop.dump import dump

    assert opened is not None, "an engine runs, or there is another target"
    shown_at = place if place is not None else Place(float("inf"), True)
    beside = _start_at(other, shown_at) if other is not None else None
    sys.stdout.write(plain(dump(_start_at(opened, shown_at), size, other=beside)))
    return 0


def _record_only(opened: Opened, path: Path) -> int:
    from kvtop.record import record

    if isinstance(opened, Attachment):
        from kvtop.sources.live import LiveSource

        record(LiveSource(opened), path)  # the file ends with this engine
    else:
        record(source_of(opened), path)
    return 0


def _has_terminal() -> bool:
    """Whether Textual has where to read keys from and to draw; in a browser it brings both along."""
    return "TEXTUAL_DRIVER" in os.environ or (sys.stdin.isatty() and sys.stderr.isatty())


def _require_terminal() -> None:
    if not _has_terminal():
        raise TelemetryError("the view needs a terminal on stdin and stderr", hint="kvtop --once --json")
