"""A vLLM server in the view while it answers in every way in which servers have been seen to answer."""

import threading
from collections.abc import AsyncIterator, Iterator
from contextlib import asynccontextmanager
from http.server import BaseHTTPRequestHandler

import pytest
from textual.pilot import Pilot

from kvengine.telemetry.metrics import MetricsState
from kvengine.telemetry.scraper import MetricsEndpoint
from kvtop.app import KvtopApp
from kvtop.sources.server import ServerSource
from kvtop.targets import EventsWanted, Server
from kvtop.view_model import Knowledge, Phase
from tests.foreign_servers import CLEARED, a_message, a_text, a_v1_text, a_web_server, by_family, stored
from tests.tui.conftest import shows, text_of, until

SIZES = [(80, 24), (160, 48)]
INTERVAL_S = 0.05
TIMEOUT_S = 0.3


class MoodyServer:
    """What the next answers are, and how many there have been."""

    def __init__(self) -> None:
        self.lines = a_v1_text(usage="0.42")
        self.mode = "well"
        self.others: dict[str, bytes] = {}
        """What is answered on other paths."""
        self.enough = threading.Event()

    def answer(self, handler: BaseHTTPRequestHandler) -> None:
        text = a_text(*by_family(self.lines))
        match self.mode:
            case "well":
                self.send(handler, 200, text)
            case "error 500":
                self.send(handler, 500, b"Internal Server Error")
            case "html":
                self.send(handler, 200, b"<!DOCTYPE html><html><body>log in</body></html>")
            case "binary":
                self.send(handler, 200, bytes(range(256)) * 8)
            case "empty":
                self.send(handler, 200, b"")
            case "cut":
                self.send(handler, 200, text[: text.index(b"prompt_tokens_total{") + 30], length=len(text))
            case "slow":
                self.enough.wait(20)
            case mode:
                raise AssertionError(f"no such mood: {mode}")

    def send(self, handler: BaseHTTPRequestHandler, status: int, body: bytes, *, length: int | None = None) -> None:
        handler.send_response(status)
        handler.send_header("Content-Length", str(len(body) if length is None else length))
        handler.end_headers()
        handler.wfile.write(body)


@pytest.fixture
def moody() -> Iterator[tuple[MoodyServer, str]]:
    """A server whose mood the test changes, and its address."""
    server = MoodyServer()

    class Answers(BaseHTTPRequestHandler):
        def do_GET(self) -> None:
            if self.path == "/metrics":
                server.answer(self)
            else:
                body = server.others.get(self.path)
                server.send(self, 200 if body is not None else 404, body or b"{}")

        def log_message(self, format: str, *args: object) -> None:
            pass

    with a_web_server(Answers) as address:
        try:
            yield server, address
        finally:
            server.enough.set()


@asynccontextmanager
async def a_view(
    address: str, size: tuple[int, int] = (160, 48), events: EventsWanted | None = None
) -> AsyncIterator[tuple[KvtopApp, Pilot]]:
    endpoint = MetricsEndpoint(address, timeout_s=TIMEOUT_S) if address else None
    server = Server(endpoint=endpoint, events=events or EventsWanted())
    app = KvtopApp(ServerSource(server, interval_s=INTERVAL_S))
    async with app.run_test(size=size) as pilot:
        yield app, pilot


def state_of(app: KvtopApp) -> MetricsState | None:
    server = app.watching.model.server
    return server.metrics.state if server is not None and server.metrics is not None else None


@pytest.mark.parametrize("size", SIZES)
async def test_the_totals_of_a_server_are_shown_with_what_it_cannot_tell(moody, size):
    _, address = moody
    async with a_view(address, size) as (app, pilot):
        # 42 % of 100 usable blocks of a pool of 101 with its null block.
        await shows(
            pilot, app.watching.state_line, "● LIVE METRICS", "in use 42.0%", "42 of 100", "● run 3", "○ wait 1"
        )
        await shows(pilot, app.watching.engines, "block ids are not published", "engine 0", "blocks held 42 of 100")
        assert app.watching.model.knowledge is Knowledge.METRICS
        if size == (160, 48):
            await shows(pilot, app.watching.figures, "▲ preemptions", "7")
            await shows(pilot, app.watching.prefixes, "does not say where it publishes KV events")
            await shows(pilot, app.watching.waste, "unused slots follow from block")
            await shows(pilot, app.watching.block, "num_gpu_blocks 101")


@pytest.mark.parametrize(
    ("mode", "state", "words"),
    [
        ("error 500", MetricsState.HTTP_ERROR, "HTTP 500"),
        ("html", MetricsState.NOT_METRICS, "the answer is an HTML page"),
        ("binary", MetricsState.NOT_METRICS, "the answer is not a metrics text"),
        ("empty", MetricsState.NOT_METRICS, "the answer is empty"),
        ("slow", MetricsState.TIMED_OUT, "no answer in 0.3 s"),
    ],
)
async def test_an_answer_without_figures_keeps_the_last_ones_dimmed_with_their_age(moody, mode, state, words):
    server, address = moody
    async with a_view(address) as (app, pilot):
        await shows(pilot, app.watching.state_line, "● LIVE", "in use 42.0%")
        server.mode = mode
        await until(pilot, lambda: state_of(app) is state and app.watching.has_class("-stale"))
        await shows(pilot, app.watching.state_line, "× NO FIGURES", words, "in use 42.0%", "age")
        assert app.watching.engines.opacity < 1
        await shows(pilot, app.watching.events, words)
        server.mode = "well"
        server.enough.set()
        await until(pilot, lambda: state_of(app) is MetricsState.OK and not app.watching.has_class("-stale"))
        await shows(pilot, app.watching.state_line, "● LIVE")
        await shows(pilot, app.watching.events, "the server answers again")


@pytest.mark.parametrize("size", SIZES)
async def test_a_server_that_never_was_there_has_no_figure_at_all(size):
    async with a_view("http://127.0.0.1:9", size) as (app, pilot):
        await shows(pilot, app.watching.state_line, "× NO FIGURES", "connection refused", "no figures yet")
        assert app.watching.model.status.phase is Phase.FAILING
        _, figures = text_of(app.watching.state_line).splitlines()
        assert "nothing known of the pool yet" in figures
        drawn = "\n".join(text_of(pane) for pane in app.watching.panes if pane is not app.watching.events)
        assert "0" not in drawn.replace("http://127.0.0.1:9", ""), "nothing is known, so no figure is drawn"


async def test_an_answer_cut_in_the_middle_shows_its_whole_lines_and_says_that_it_was_cut(moody):
    server, address = moody
    async with a_view(address) as (app, pilot):
        await shows(pilot, app.watching.state_line, "in use 42.0%")
        server.mode = "cut"
        await until(pilot, lambda: state_of(app) is MetricsState.PARTIAL)
        await shows(pilot, app.watching.state_line, "● LIVE", "cut in the middle", "in use 42.0%", "● run 3")
        # The counters after the cut are not there: unknown, not 0.
        await shows(pilot, app.watching.state_line, "▲ preemptions –")


async def test_a_gauge_that_is_not_a_number_is_unknown_and_nothing_else(moody):
    server, address = moody
    async with a_view(address) as (app, pilot):
        await shows(pilot, app.watching.state_line, "in use 42.0%")
        server.lines = a_v1_text(usage="NaN")
        await shows(pilot, app.watching.state_line, "● LIVE", "in use – – of 100", "● run 3")
        await shows(pilot, app.watching.engines, "usage is not published")


async def test_names_of_an_older_release_are_the_same_figures(moody):
    server, address = moody
    server.lines = a_v1_text(usage="0.42", new_names=False, num_blocks="100")
    async with a_view(address) as (app, pilot):
        # Until 0.10.1 the usage is a share of all blocks, the null block included: 42 of 100.
        await shows(pilot, app.watching.state_line, "in use 42.0%", "42 of 100")


async def test_two_engines_are_two_pools_and_a_full_one_is_not_averaged_away(moody):
    server, address = moody
    server.lines = [*a_v1_text(usage="0.9"), *a_v1_text(engine="1", usage="0.1")]
    async with a_view(address) as (app, pilot):
        # 90 and 10 of 100 each: 100 of 200 held, the fullest at 90 %.
        await shows(
            pilot, app.watching.state_line, "2 engines", "in use 50.0%", "100 of 200", "fullest 90.0%", "● run 6"
        )
        await shows(pilot, app.watching.engines, "engine 0", "90.0% in use", "engine 1", "10.0% in use")


async def test_counters_that_go_back_are_a_restart_and_never_a_rate(moody):
    server, address = moody
    async with a_view(address) as (app, pilot):
        await shows(pilot, app.watching.figures, "output tokens")
        await until(pilot, lambda: app.watching.model.server.metrics.counted is not None)
        server.lines = [line.replace("} 200", "} 3") for line in a_v1_text(usage="0.42")]
        await shows(pilot, app.watching.events, "server restarted: counters went back")
        await until(pilot, lambda: app.watching.model.server.metrics.counted is not None)
        assert app.watching.model.server.metrics.counted.generation_tokens == 0
        rates = app.watching.model.trends.columns(500, 10**9).output_per_s
        assert all(rate is None or rate >= 0 for rate in rates)
        assert None in rates


async def test_an_engine_that_goes_does_not_show_up_as_speed(moody):
    server, address = moody
    both = [*a_v1_text(), *a_v1_text(engine="1")]
    server.lines = both
    async with a_view(address) as (app, pilot):
        await shows(pilot, app.watching.state_line, "2 engines")
        server.lines = a_v1_text()
        await shows(pilot, app.watching.events, "2 engines became 1")
        server.lines = both
        await shows(pilot, app.watching.events, "1 engines became 2")
        rates = app.watching.model.trends.columns(500, 10**9).output_per_s
        assert {rate for rate in rates if rate is not None} <= {0.0}


async def test_a_word_of_the_server_cannot_move_the_cursor(moody):
    server, address = moody
    server.lines = [line.replace('model_name="m"', 'model_name="a\\nb\x1b[2J"') for line in a_v1_text()]
    async with a_view(address) as (app, pilot):
        await shows(pilot, app.watching.state_line, "a\N{REPLACEMENT CHARACTER}b\N{REPLACEMENT CHARACTER}[2J")


class TestEvents:
    """With KV events the cached set is known."""

    @pytest.fixture
    def publisher(self):
        zmq = pytest.importorskip("zmq", reason="needs pyzmq")
        context = zmq.Context()
        socket = context.socket(zmq.PUB)
        port = socket.bind_to_random_port("tcp://127.0.0.1")
        yield socket, f"tcp://127.0.0.1:{port}"
        context.destroy(linger=0)

    async def publish_until(self, pilot: Pilot, app: KvtopApp, socket, message: list[bytes]) -> None:
        """Publish the first message until it has arrived: before that nobody knows whether somebody listens."""
        for _ in range(200):
            socket.send_multipart(message)
            await pilot.pause(0.05)
            if app.watching.model.knowledge is Knowledge.EVENTS:
                return
        raise AssertionError("no event arrived")

    async def test_events_tell_the_cached_set_and_its_prefixes(self, moody, publisher):
        _, address = moody
        socket, live = publisher
        async with a_view(address, events=EventsWanted(live=live)) as (app, pilot):
            await shows(pilot, app.watching.prefixes, "no event has come yet")
            await self.publish_until(pilot, app, socket, a_message(0, stored([11, 12, 13])))
            await shows(pilot, app.watching.state_line, "LIVE EVENTS", "▒ cached about 3")
            socket.send_multipart(a_message(1, stored([21], 12), stored([22], 12)))
            await shows(pilot, app.watching.state_line, "▒ cached about 5")
            await until(pilot, lambda: app.watching.prefixes.num_rows == 4)
            # 11 and 12 are followed by 13, 21 and 22.
            first, *others = text_of(app.watching.prefixes).splitlines()[1:5]
            assert first.split()[:4] == ["5", "2", "▾", "▒"]
            assert "tokens 0 1 2 3" in first
            assert [line.split()[:2] for line in others] == [["1", "1"]] * 3
            socket.send_multipart(a_message(2, CLEARED))
            await shows(pilot, app.watching.state_line, "▒ cached about 0")
            await shows(pilot, app.watching.events, "the whole prefix cache was reset")

    async def test_a_gap_without_a_replay_makes_the_figures_doubtful(self, moody, publisher):
        _, address = moody
        socket, live = publisher
        async with a_view(address, events=EventsWanted(live=live)) as (app, pilot):
            await self.publish_until(pilot, app, socket, a_message(0, stored([11])))
            socket.send_multipart(a_message(3, stored([12])))
            await shows(pilot, app.watching.engines, "doubtful: messages 1 to 2 are lost")
            await shows(pilot, app.watching.events, "messages 1 to 2 never came")

    async def test_events_alone_are_shown_without_metrics(self, publisher):
        socket, live = publisher
        async with a_view("", events=EventsWanted(live=live)) as (app, pilot):
            await self.publish_until(pilot, app, socket, a_message(0, stored([11, 12])))
            await shows(pilot, app.watching.engines, "engine 0", "▒ cached about 2 blocks, 2 distinct")
            await shows(pilot, app.watching.state_line, "EVENTS", "nothing known of the pool yet")

    async def test_a_server_is_asked_where_its_events_are(self, moody, publisher):
        server, address = moody
        socket, live = publisher
        endpoint = live.replace("127.0.0.1", "*")
        server.others["/kv_event_sources"] = f'{{"0": {{"endpoint": "{endpoint}"}}}}'.encode()
        async with a_view(address) as (app, pilot):
            await self.publish_until(pilot, app, socket, a_message(0, stored([11, 12])))
            await shows(pilot, app.watching.state_line, "LIVE EVENTS", "▒ cached about 2")

    async def test_each_rank_has_its_own_pool_and_its_own_publisher(self, moody, publisher):
        server, address = moody
        first, first_address = publisher
        second = first.context.socket(first.type)
        second_port = second.bind_to_random_port("tcp://127.0.0.1")
        server.lines = [*a_v1_text(usage="0.9"), *a_v1_text(engine="1", usage="0.1")]
        endpoints = (first_address.replace("127.0.0.1", "*"), f"tcp://*:{second_port}")
        sources = ", ".join(f'"{rank}": {{"endpoint": "{endpoint}"}}' for rank, endpoint in enumerate(endpoints))
        server.others["/kv_event_sources"] = f"{{{sources}}}".encode()
        async with a_view(address) as (app, pilot):
            await shows(pilot, app.watching.state_line, "2 engines")
            for _ in range(200):
                first.send_multipart(a_message(0, stored([11, 12]), rank=0))
                second.send_multipart(a_message(0, stored([11, 12, 13]), rank=1))
                await pilot.pause(0.05)
                if app.watching.model.knowledge is Knowledge.EVENTS:
                    break
            # Equal content in two pools is in two places: 2 and 3 blocks.
            await shows(pilot, app.watching.state_line, "▒ cached about 5")
            await shows(pilot, app.watching.engines, "▒ cached about 2 blocks", "▒ cached about 3 blocks")
            await shows(pilot, app.watching.prefixes, "engine 0", "engine 1")
        second.close(linger=0)


@pytest.mark.parametrize("size", SIZES)
async def test_a_view_lives_through_every_broken_answer_in_a_row(moody, size):
    server, address = moody
    states = {
        "error 500": MetricsState.HTTP_ERROR,
        "html": MetricsState.NOT_METRICS,
        "cut": MetricsState.PARTIAL,
        "binary": MetricsState.NOT_METRICS,
        "slow": MetricsState.TIMED_OUT,
        "empty": MetricsState.NOT_METRICS,
    }
    async with a_view(address, size) as (app, pilot):
        await shows(pilot, app.watching.state_line, "in use 42.0%")
        for mode, state in states.items():
            server.mode = mode
            await until(pilot, lambda state=state: state_of(app) is state)
            await shows(pilot, app.watching.state_line, "in use 42.0%")
            server.mode = "well"
            server.enough.set()
            await until(pilot, lambda: state_of(app) is MetricsState.OK)
            server.enough.clear()
        server.lines = a_v1_text(usage="NaN")
        await shows(pilot, app.watching.state_line, "in use –")
        server.lines = [line.replace("} 1000", "} 10").replace("} 200", "} 2") for line in a_v1_text(usage="0.1")]
        await shows(pilot, app.watching.state_line, "in use 10.0%")
        server.lines = [*a_v1_text(usage="0.9"), *a_v1_text(engine="1", usage="0.1")]
        await shows(pilot, app.watching.state_line, "in use 50.0%")
        server.lines = a_v1_text(usage="0.42", new_names=False, num_blocks="100")
        await shows(pilot, app.watching.state_line, "in use 42.0%")
        rates = app.watching.model.trends.columns(500, 10**9).output_per_s
        assert all(rate is None or 0 <= rate < 10_000 for rate in rates), "no counter that stepped shows up as speed"
