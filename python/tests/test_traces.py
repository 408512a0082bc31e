"""Traces of steps, as a collector of OpenTelemetry receives them from trainers and servers."""

from __future__ import annotations

import http.server
import json
import subprocess
import sys
import threading
from collections import defaultdict
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from conftest import package_environment, run_python
from objects import Objects

trace_service = pytest.importorskip("opentelemetry.proto.collector.trace.v1.trace_service_pb2")

ROWS, GROUP, BATCH = 400, 50, 20
STEPS = ROWS // BATCH
SERVER = 2
CLIENT = 3

#: Reads one epoch.
TRAINER = f"""
import json, sys
import bowstring
urls, options = json.loads(sys.argv[1]), json.loads(sys.argv[2])
loader = bowstring.Loader(urls, batch_size={BATCH}, seed=1, **options)
print(sum(len(batch["id"]) for batch in loader))
"""

#: The same, within a span of Python's own.
WITHIN = (
    """
from opentelemetry import context, trace
parent = trace.SpanContext(0x11111111111111111111111111111111, 0x2222222222222222, True, trace.TraceFlags(1))
context.attach(trace.set_span_in_context(trace.NonRecordingSpan(parent)))
import opentelemetry.propagate
"""
    + TRAINER
)


class Collector(http.server.ThreadingHTTPServer):
    """Receives OTLP over HTTP, in protobuf, and keeps the spans."""

    daemon_threads = True

    def __init__(self) -> None:
        self.spans: list[Any] = []
        self.service: dict[bytes, str] = {}
        super().__init__(("127.0.0.1", 0), Receiver)
        threading.Thread(target=self.serve_forever, daemon=True).start()

    def environment(self, service: str, **more: str) -> dict[str, str]:
        """Variables that make a program export its traces here."""
        endpoint = f"http://127.0.0.1:{self.server_address[1]}"
        return {"OTEL_EXPORTER_OTLP_ENDPOINT": endpoint, "OTEL_SERVICE_NAME": service, **more}

    def named(self, name: str) -> list[Any]:
        """Spans of this name."""
        return [span for span in self.spans if span.name == f"bowstring.{name}"]

    def traces(self) -> dict[bytes, list[Any]]:
        """Spans by trace."""
        found = defaultdict(list)
        for span in self.spans:
            found[span.trace_id].append(span)
        return dict(found)


class Receiver(http.server.BaseHTTPRequestHandler):
    """Answers exporters."""

    server: Collector
    protocol_version = "HTTP/1.1"

    def do_POST(self) -> None:
        """Keeps what is sent."""
        body = self.rfile.read(int(self.headers["Content-Length"]))
        request = trace_service.ExportTraceServiceRequest.FromString(body)
        assert self.path == "/v1/traces"
        for resource in request.resource_spans:
            (service,) = (
                pair.value.string_value for pair in resource.resource.attributes if pair.key == "service.name"
            )
            for scope in resource.scope_spans:
                assert scope.scope.name == "bowstring"
                self.server.spans.extend(scope.spans)
                self.server.service.update((span.span_id, service) for span in scope.spans)
        self.send_response(200)
        self.send_header("Content-Type", "application/x-protobuf")
        self.send_header("Content-Length", "0")
        self.end_headers()

    def log_message(self, *_: object) -> None:
        """Says nothing."""


@pytest.fixture
def collector() -> Iterator[Collector]:
    """A collector that has nothing yet."""
    server = Collector()
    yield server
    server.shutdown()
    server.server_close()


@pytest.fixture
def stored(objects: Objects) -> Objects:
    """Objects with a dataset in ``s3://bucket/rows.parquet``."""
    sink = pa.BufferOutputStream()
    pq.write_table(pa.table({"id": range(ROWS)}), sink, row_group_size=GROUP)
    objects.content["bucket/rows.parquet"] = sink.getvalue().to_pybytes()
    return objects


def attributes(span: Any) -> dict[str, Any]:
    """The attributes of a span."""
    value = {pair.key: getattr(pair.value, str(pair.value.WhichOneof("value"))) for pair in span.attributes}
    assert len(value) == len(span.attributes)
    return value


def train(urls: str | list[str], cwd: Path, program: str = TRAINER, options: Any = None, **environment: str) -> None:
    """Reads one epoch in a process of its own."""
    arguments = [json.dumps(urls), json.dumps(options or {})]
    ended = run_python("-c", program, *arguments, cwd=cwd, **environment)
    assert (ended.returncode, ended.stdout.strip()) == (0, str(ROWS)), ended.stderr


def whole(spans: list[Any]) -> tuple[Any, dict[str, list[Any]]]:
    """Returns the wait of a step's trace, and the others by name, which lie in one tree below it."""
    by_name = defaultdict(list)
    for span in spans:
        by_name[span.name.removeprefix("bowstring.")].append(span)
        assert 0 < span.start_time_unix_nano <= span.end_time_unix_nano
    (wait,) = by_name.pop("next")
    assert wait.parent_span_id == b""
    ids = {span.span_id for span in spans}
    assert len(ids) == len(spans)
    assert all(span.parent_span_id in ids for others in by_name.values() for span in others)
    return wait, dict(by_name)


@pytest.mark.parametrize("transport", ["tcp", "shared_memory"])
def test_a_trace_leads_from_the_trainer_to_the_request_of_the_store(
    transport: str, collector: Collector, stored: Objects, tmp_path: Path
) -> None:
    settings = "".join(f'{key} = "{value}"\n' for key, value in stored.storage_options.items())
    (tmp_path / "serve.toml").write_text(
        f'[datasets.rows]\nurl = "s3://bucket/rows.parquet"\n[datasets.rows.storage_options]\n{settings}'
    )
    command = [sys.executable, "-m", "bowstring", "serve", "--config", "serve.toml", "--listen", "127.0.0.1:0"]
    environment = package_environment(**collector.environment("server"))
    with subprocess.Popen(
        [*command, "--print-address"], stdout=subprocess.PIPE, cwd=tmp_path, env=environment, text=True
    ) as serving:
        try:
            assert serving.stdout is not None
            url = f"{serving.stdout.readline().strip()}/rows"
            options = {"storage_options": {"transport": transport}}
            train(url, tmp_path, options=options, **collector.environment("trainer"))
        finally:
            serving.terminate()
            assert serving.wait(30) == 0
    (opened,) = collector.named("open")
    assert attributes(opened)["bowstring.url"] == url
    traces = collector.traces()
    del traces[opened.trace_id]
    seen = set()
    for spans in traces.values():
        wait, others = whole(spans)
        (link,) = wait.links
        assert (link.trace_id, link.span_id) == (opened.trace_id, opened.span_id)
        (serve,) = others["serve"]
        (read,), gets, (decode,) = others["read"], others["get"], others["decode"]
        assert [collector.service[span.span_id] for span in (wait, serve, read)] == ["trainer", "server", "server"]
        assert (serve.parent_span_id, serve.kind, wait.kind) == (wait.span_id, SERVER, CLIENT)
        assert read.end_time_unix_nano == decode.start_time_unix_nano
        assert attributes(read)["bowstring.file"].endswith("rows.parquet")
        for get in gets:
            assert (get.parent_span_id, get.kind) == (read.span_id, CLIENT)
            assert attributes(get)["url.full"] == "s3://bucket/rows.parquet"
        assert attributes(wait)["bowstring.rows"] == BATCH == attributes(serve)["bowstring.rows"]
        seen.add((attributes(wait)["bowstring.epoch"], attributes(wait)["bowstring.step"]))
    assert seen == {(0, step) for step in range(STEPS)}


def test_ranks_of_one_launch_meet_in_the_traces_of_their_steps(
    collector: Collector, stored: Objects, tmp_path: Path
) -> None:
    parent = "00-4bf92f3577b34da6a3ce929d0e0e4736-00f067aa0ba902b7-01"
    for rank in (0, 1):
        ranked = {"rank": rank, "world_size": 2, "storage_options": stored.storage_options}
        ended = run_python(
            *("-c", TRAINER, json.dumps("s3://bucket/rows.parquet"), json.dumps(ranked)),
            cwd=tmp_path,
            **collector.environment("trainer", TRACEPARENT=parent),
        )
        assert ended.returncode == 0, ended.stderr
    opened = collector.named("open")
    assert {span.trace_id.hex() for span in opened} == {"4bf92f3577b34da6a3ce929d0e0e4736"}
    assert {span.parent_span_id.hex() for span in opened} == {"00f067aa0ba902b7"}
    traces = collector.traces()
    del traces[opened[0].trace_id]
    assert len(traces) == STEPS // 2
    for spans in traces.values():
        waits = [span for span in spans if span.name == "bowstring.next"]
        assert sorted(attributes(span)["bowstring.rank"] for span in waits) == [0, 1]


def test_a_loader_belongs_to_the_span_of_python_that_it_is_opened_in(
    collector: Collector, stored: Objects, tmp_path: Path
) -> None:
    pytest.importorskip("opentelemetry.trace")
    options = {"storage_options": stored.storage_options}
    train("s3://bucket/rows.parquet", tmp_path, WITHIN, options, **collector.environment("trainer"))
    (opened,) = collector.named("open")
    assert (opened.trace_id.hex(), opened.parent_span_id.hex()) == ("1" * 32, "2" * 16)


def test_a_sample_has_whole_traces(collector: Collector, stored: Objects, tmp_path: Path) -> None:
    options = {"storage_options": stored.storage_options}
    share = {"OTEL_TRACES_SAMPLER": "parentbased_traceidratio", "OTEL_TRACES_SAMPLER_ARG": "0.3"}
    for _ in range(5):
        train("s3://bucket/rows.parquet", tmp_path, options=options, **collector.environment("trainer", **share))
    waits = collector.named("next")
    assert 5 <= len(waits) <= 60, "of 100, 30 are expected"
    traces = collector.traces()
    assert all(len(traces[wait.trace_id]) > 1 for wait in waits)


@pytest.mark.parametrize(
    "forbids",
    [
        {"OTEL_SDK_DISABLED": "true"},
        {"OTEL_TRACES_EXPORTER": "none"},
        {"OTEL_TRACES_SAMPLER": "always_off"},
        {"TRACEPARENT": "00-4bf92f3577b34da6a3ce929d0e0e4736-00f067aa0ba902b7-00"},
    ],
    ids=lambda variables: next(iter(variables)),
)
def test_nothing_is_exported_that_the_environment_forbids(
    forbids: dict[str, str], collector: Collector, stored: Objects, tmp_path: Path
) -> None:
    options = {"storage_options": stored.storage_options}
    train("s3://bucket/rows.parquet", tmp_path, options=options, **collector.environment("trainer", **forbids))
    assert collector.spans == []


def test_a_collector_that_is_not_there_costs_no_rows_and_little_time(stored: Objects, tmp_path: Path) -> None:
    options = {"storage_options": stored.storage_options}
    nowhere = {"OTEL_EXPORTER_OTLP_ENDPOINT": "http://127.0.0.1:9"}
    train("s3://bucket/rows.parquet", tmp_path, options=options, **nowhere)
