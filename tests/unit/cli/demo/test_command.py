"""The output of `gateway demo`, from invented measurements."""

from __future__ import annotations

from gateway.cli.demo.client import ClientRoute, DemoReply, Measurement
from gateway.cli.demo.command import as_json, as_table, serving_text
from gateway.cli.demo.samples import SIDE, Scan
from gateway.settings.units import Url

SURE = DemoReply(1, (0.25, 0.75))
TRIPS = [
    Measurement(
        ClientRoute("oip.http", Url("oip", "http", "127.0.0.1", 1), "JSON", {}),
        SURE,
        503,
        448,
        1234.6,
    ),
    Measurement(
        ClientRoute("oip.grpc", Url("oip", "grpc", "127.0.0.1", 2), "", {}), SURE, 34, 17, 98.4
    ),
]


def test_table_has_a_line_for_each_protocol() -> None:
    """A line has protocol, bytes, result and time, with numbers aligned to the right."""
    expected = (
        "protocol       request bytes  response bytes  result     microseconds\n"
        "oip.http JSON            503             448  1 (75.0%)          1235\n"
        "oip.grpc                  34              17  1 (75.0%)            98"
    )
    assert expected == as_table(TRIPS)


def test_json_has_the_figures_of_the_table() -> None:
    """It also has all probabilities."""
    found = as_json(TRIPS[1:], agreed=True)
    trip = {
        "protocol": "oip.grpc",
        "form": "",
        "request_bytes": 34,
        "answer_bytes": 17,
        "digit": 1,
        "probabilities": [0.25, 0.75],
        "microseconds": 98,
    }
    assert {"agreed": True, "trips": [trip]} == found


def test_serving_text_has_a_curl_command() -> None:
    """It has the addresses, and a curl line with the pixels of the scan."""
    scan = Scan((0.0, 16.0) * (SIDE * SIDE // 2), 1)
    text = serving_text({"main.http": "127.0.0.1:8000", "main.grpc": "127.0.0.1:8001"}, scan)
    assert "Serving: main.http on 127.0.0.1:8000, main.grpc on 127.0.0.1:8001" in text
    assert "curl -s http://127.0.0.1:8000/v2/models/digits/infer -d '{" in text
    assert '"shape":[1,64],"data":[0,16,0,16,' in text


def test_serving_text_without_http_has_no_curl_command() -> None:
    """The command needs HTTP."""
    assert "curl" not in serving_text({"main.grpc": "127.0.0.1:8001"}, Scan((0.0,) * 64, 0))
