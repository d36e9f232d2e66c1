"""Masked fields: no page and no answer shows them, wherever they are."""

from __future__ import annotations

import base64
import html
import json
import re
from typing import TYPE_CHECKING, Any, Final

import pytest
from starlette.routing import Route

from queue_over_sql import NoRetry
from queue_over_sql.values.fingerprints import fingerprint
from queue_over_sql.web.api.app import ENDPOINTS
from queue_over_sql.web.masking import MASK, Mask
from queue_over_sql.web.settings import Role
from tests.web.conftest import HOST
from tests.web.test_attacks import OWN, make_site

if TYPE_CHECKING:
    from queue_over_sql import Queue
    from tests.web.test_attacks import MakeSite, Site

__all__ = ["make_site"]

MARKER: Final = "DE02-4711"
MASKED: Final = ["iban", "card.number"]
# A fingerprint of a masked error would let a viewer guess its words.
PLAIN: Final = "ValueError: no account: iban=SMITH"
# The marker as itself, in hexadecimal digits as pages show bytes, and in Base64 at each offset.
_BYTES: Final = MARKER.encode()
FORMS: Final = (
    MARKER,
    _BYTES.hex(" ", 2),
    (b"x" + _BYTES).hex(" ", 2)[3:],
    *(base64.b64encode(b"x" * n + _BYTES).decode()[4:-4] for n in range(3)),
)


def fill(queue: Queue, payload: Any) -> None:
    """Leave a message waiting, one dead with its error, and one rejected, each with the marker."""
    queue.publish_many([payload] * 3)
    failed, rejected = queue.consume(2)
    failed.nack(ValueError(f"no account: iban={MARKER!r}, {{'iban': '{MARKER}'}}"))
    rejected.reject(f'{{"card": {{"number": "{MARKER}"}}}}')
    queue.publish(payload)
    queue.consume(1)[0].nack(ValueError("no account: iban=SMITH"))
    queue.publish(payload, headers={"iban": MARKER}, delay=3600)


@pytest.fixture
def site(make_site: MakeSite) -> Site:
    """A dashboard and an API, with the marker in everything that has fields."""
    made = make_site(masked=MASKED)
    service = made.server.service
    inner = json.dumps({"card": {"number": MARKER}, "iban": MARKER})
    document = {"iban": MARKER, "card": {"number": MARKER}, "raw": inner, "note": f"iban: {MARKER}"}
    options: dict[str, Any] = {"archive": "all", "retry": NoRetry()}
    fill(service.create_queue("documents", **options), document)
    fill(service.create_queue("texts", payload="text", **options), json.dumps(document))
    fill(service.create_queue("lines", payload="text", **options), f'Iban = "{MARKER}"; sum=3')
    fill(service.create_queue("blobs", payload="bytes", **options), json.dumps(document).encode())
    fill(service.create_queue("binary", payload="bytes", **options), b"\xff" + _BYTES)
    service.schedules.add("nightly", "documents", document, cron="0 3 * * *")
    topic = service.create_topic("events")
    topic.subscribe("documents", "#", where={"iban": MARKER, "card.number": MARKER})
    return made


def test_no_way_out_shows_a_masked_field(site: Site) -> None:
    """The marker is on no page and in no answer, as text, in hexadecimal digits or in Base64."""
    cookie, csrf = site.session(Role.ADMIN)
    names = ["documents", "texts", "lines", "blobs", "binary"]
    routes = [each.path for each in site.server.app.routes if isinstance(each, Route)]
    pages = {path for path in routes if "{action}" not in path and path != "/events"}
    pages |= {
        "/topics?key=x",
        "/search?q=1&texts=1",
        *(f"/queues/{name}/archive?error={fingerprint(PLAIN)}" for name in names),
    }
    asked = {("GET", path, "") for path in pages}
    for endpoint in ENDPOINTS:
        if endpoint.method == "GET":
            asked.add(("GET", f"/api/v1{endpoint.path}", ""))
            if endpoint.lines_out:
                asked |= {
                    ("GET", f"/api/v1{endpoint.path}?payload_encoding=json", ""),
                    ("GET", f"/api/v1{endpoint.path}", "application/x-ndjson"),
                }
    places = {"{topic}": "events", "{name:path}": "nightly"}
    seen = 0
    for method, path, accept in sorted(asked):
        for name, number in [(name, number) for name in names for number in range(1, 5)]:
            given = path.replace("{queue}", name).replace("/queues/{name}", f"/queues/{name}")
            given = given.replace("{number}", str(number)).replace("{id}", str(number))
            for place, value in places.items():
                given = given.replace(place, value)
            answer = site.ask(method, given, cookie, headers={"accept": accept or "*/*"})
            assert answer.status_code in {200, 303, 404, 405, 422}, (given, answer.text)
            text = html.unescape(answer.text)
            assert not any(form in text for form in FORMS), (given, text)
            assert fingerprint(PLAIN) not in text.replace(given, ""), (given, text)
            seen += MASK in text or f"\\u{ord(MASK[0]):x}" in text
            if given == path:
                break
    assert seen > 60
    for name in ("redrive", "remove-archived"):
        form = {"queue": "documents", "id": "2", "csrf": csrf}
        question = site.ask("POST", f"/do/{name}", cookie, data=form, headers=OWN)
        assert MASK in question.text
        assert MARKER not in html.unescape(question.text)
    # The links and filters with the fingerprints that are shown lead to the dead letters.
    page = site.ask("GET", "/queues/documents/dead", cookie).text
    links = set(re.findall(r"/queues/documents/archive\?error=[0-9a-f]{16}", page))
    errors = site.server.json("GET", "/queues/documents/errors")["errors"]
    assert len(links) == len(errors) > 1
    for link, error in zip(sorted(links), errors, strict=True):
        assert "/queues/documents/messages/" in site.ask("GET", link, cookie).text
        path = f"/queues/documents/archive?error={error['fingerprint']}"
        assert error["count"] == len(site.server.json("GET", path)["messages"])
    body = {"routing_key": "x", "payload": {}}
    routed = site.server.call("POST", "/topics/events/route", json=body)
    assert MARKER not in routed.text


def test_the_audit_has_no_fingerprint_of_a_masked_error(site: Site) -> None:
    """Not even where the change was of an error that no dead letter has: the second time here."""
    errors = site.server.json("GET", "/queues/documents/errors")["errors"]
    for each in [*errors, *errors]:
        body = {"filter": {"error": each["fingerprint"]}, "at_most": 9}
        assert site.server.call("POST", "/queues/documents/archive/requeue", json=body).is_success
    audited = str(site.server.json("GET", "/audit"))
    assert fingerprint(PLAIN) not in audited
    assert "error that no dead letter has" in audited


def test_what_is_masked_is_not_edited(site: Site) -> None:
    """A page that cannot show a payload does not edit it: neither before nor after the question."""
    cookie, csrf = site.session(Role.ADMIN)
    for confirmed in ({}, {"confirmed": "1"}):
        form = {"queue": "documents", "id": "2", "csrf": csrf, "payload": "{}", **confirmed}
        refused = site.ask("POST", "/do/edit", cookie, data=form, headers=OWN)
        assert 422 == refused.status_code
        assert "masked" in refused.text
        assert MARKER not in html.unescape(refused.text)


def test_no_search_reveals_a_masked_field(site: Site) -> None:
    """Neither by its path, nor by a value around it, in the API or on a page."""
    cookie, _ = site.session(Role.ADMIN)
    for field, value in (("iban", MARKER), ("card", {"number": MARKER}), ("a", [{"Iban": 1}])):
        query = {"payload": json.dumps({field: value})}
        answer = site.server.call("GET", "/queues/documents/messages", params=query)
        assert (403, "/problems/masked") == (answer.status_code, answer.json()["type"])
        page = {"field": field, "value": json.dumps(value)}
        assert 422 == site.ask("GET", "/queues/documents/messages", cookie, params=page).status_code


def test_claims_that_show_masked_fields(site: Site) -> None:
    """People who signed in get none; a token gets the whole message, and the audit says who."""
    cookie, csrf = site.session(Role.ADMIN)
    headers = {**OWN, "x-csrf-token": csrf, "cookie": cookie}
    path = "/api/v1/queues/documents/claim"
    assert (403, "masked") == site.server.refused("POST", path, headers=headers)
    for _ in range(2):
        (message,) = site.server.json("POST", "/queues/documents/claim", role=Role.OPERATOR)[
            "messages"
        ]
        assert MARKER == message["payload"]["iban"]
        body = {"claims": [message["claim"]]}
        site.server.json("POST", "/queues/documents/release", body, role=Role.OPERATOR)
    rows = site.server.json("GET", "/audit")["rows"]
    claims = [(row["who"], row["queue"]) for row in rows if row["what"] == "claim"]
    assert [("operator", "documents")] == claims
    assert HOST


def test_sentences() -> None:
    """A value is known by the name before it; what cannot be read as JSON is hidden whole."""
    mask = Mask(MASKED)
    for text in (
        "iban=S3",
        "IBAN : 'S3, S3'",
        '\\"iban\\": \\"S3, S3\\"',
        "{'iban': {'a': 'S3'}}",
        "iban: {'a': 'S3'}",
        'number="S3',
        "1 error\niban\n  [type=int, input_value='S3', input_type=str]",
        '{"iban": "S3',
        '["S3", {"iban": 1}, "S3',
        json.dumps({"a": json.dumps({"iban": "S3"})}),
    ):
        assert "S3" not in mask.text(text), text
    for text in ("ibanity: x", "the iban is wrong", "[Errno 2] no file", "sum: 3"):
        assert text == mask.text(text)
    assert "n: 3, iban: •••; m=4" == mask.text("n: 3, iban: x y; m=4")
    long = 'iban="' * 50_000
    assert re.fullmatch(r"iban=•••.*", mask.text(long), re.DOTALL)
