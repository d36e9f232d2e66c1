"""The API answers any request as its document says, and never with a 5xx."""

from __future__ import annotations

import ast
import functools
import json
from collections import Counter
from collections.abc import Iterator
from pathlib import Path
from typing import Any, get_args

import httpx2
import msgspec
import pytest
import schemathesis
from schemathesis.config import SchemathesisConfig
from schemathesis.engine import events, from_schema
from starlette.applications import Starlette
from starlette.routing import Mount

from queue_over_sql import web
from queue_over_sql.web.api import shapes
from queue_over_sql.web.api.app import ENDPOINTS
from queue_over_sql.web.api.document import document
from queue_over_sql.web.api.endpoints import JSON
from queue_over_sql.web.api.examples import BODIES
from queue_over_sql.web.attempts import Attempts
from queue_over_sql.web.settings import Role
from tests.web.conftest import MakeServer

# Whether a request that fits the schema is done depends on what is there; these ask for more.
STATE_DECIDES = {"positive_data_acceptance"}
KNOWN = {"queue": "jobs", "topic": "events", "name": "daily", "id": "1"}


@schemathesis.serializer("application/x-ndjson")
def lines(_: Any, value: Any) -> bytes:
    """A line of whatever it is."""
    return json.dumps(value).encode()


@schemathesis.hook
def map_path_parameters(_: Any, given: dict[str, Any] | None) -> dict[str, Any] | None:
    """Lead three of four requests to what is there."""
    if not given or len(str(given)) % 4 == 0:
        return given
    return {name: KNOWN[name] for name in given}


@pytest.mark.filterwarnings("ignore")
def test_document_holds(make_server: MakeServer, monkeypatch: pytest.MonkeyPatch) -> None:
    """Made-up requests, good and bad, one by one and in sequences, get what the document says."""
    monkeypatch.setattr(Attempts, "blocked_for", lambda *_: None)
    server = make_server(longest_wait=0.01)
    jobs = server.service.create_queue("jobs", archive="all")
    server.service.create_topic("events").subscribe("jobs", "#")
    server.service.schedules.add("daily", "jobs", {"a": 1}, every=3600)
    jobs.publish_many([{"a": number} for number in range(50)])
    config = SchemathesisConfig.from_dict(
        {
            "headers": server.as_(Role.ADMIN),
            "generation": {"max-examples": 5, "deterministic": True, "database": "none"},
        }
    )
    schema = schemathesis.openapi.from_asgi("/api/v1/openapi.json", server.app, config=config)
    wrong, statuses = [], Counter[int]()
    for event in from_schema(schema).execute():
        assert not isinstance(event, events.FatalError), event
        if not isinstance(event, events.ScenarioFinished):
            continue
        for interaction in event.recorder.interactions.values():
            if interaction.response is not None:
                statuses[interaction.response.status_code] += 1
        for case_id, checks in event.recorder.checks.items():
            case = event.recorder.cases[case_id].value
            wrong += [
                f"{check.name}: {case.method} {case.path} {case.query!r} {case.body!r}: "
                f"{check.failure_info.failure.message}"
                for check in checks
                if check.failure_info is not None and check.name not in STATE_DECIDES
            ]
    assert [] == wrong
    assert [] == [status for status in statuses if status >= 500]
    # It has not only been refused.
    assert statuses[200] + statuses[201] + statuses[204] > 50


def test_document_has_every_operation(make_server: MakeServer) -> None:
    """Each operation is there with its role, under the path that the server is mounted at."""
    document = make_server().ask("GET", "/api/v1/openapi.json").json()
    described = {
        operation["operationId"]: operation["description"]
        for path in document["paths"].values()
        for operation in path.values()
    }
    assert {each.id for each in ENDPOINTS} == set(described)
    roles = {each.id: f"the role {each.role}" if each.role else "any role" for each in ENDPOINTS}
    assert all(f"Needs {roles[name]}." in text for name, text in described.items())
    assert "3.1.0" == document["openapi"]
    assert [{"url": "/api/v1"}] == document["servers"]


def test_document_suits_generators() -> None:
    """No default makes a field required, no object is an empty one, each enumeration has a type.

    openapi-typescript decides so.
    """
    components = document(ENDPOINTS, "/api/v1")["components"]["schemas"]
    wrong = []
    for name, component in components.items():
        for schema in _schemas(component):
            is_open = schema.get("type") != "object" or {
                "properties",
                "additionalProperties",
            } & set(schema)
            if "default" in schema or ("enum" in schema and "type" not in schema) or not is_open:
                wrong.append((name, schema))
    assert [] == wrong
    assert ["payload"] == components["NewMessage"]["required"]


def _schemas(schema: Any) -> Iterator[dict[str, Any]]:
    if isinstance(schema, list):
        for each in schema:
            yield from _schemas(each)
    if isinstance(schema, dict):
        yield schema
        yield from _schemas([*schema.get("properties", {}).values()])
        others = {"properties", "additionalProperties", "enum", "required"}
        yield from _schemas([inner for name, inner in schema.items() if name not in others])


def test_document_has_all_fields_of_problems() -> None:
    """Each member that an error answer of the API can have is described."""
    named = {"type", "title", "status", "detail"}
    for file in Path(web.__file__).parent.rglob("*.py"):
        for node in ast.walk(ast.parse(file.read_text())):
            match node:
                case ast.Call(ast.Name("Problem"), [*_], [*keywords]):
                    named |= {each.arg for each in keywords if each.arg is not None}
                case ast.FunctionDef("_more"):
                    keys = (key for each in ast.walk(node) for key in getattr(each, "keys", []))
                    named |= {key.value for key in keys}
    assert named | {"line", "published"} == set(shapes.Problem.__struct_fields__)


def test_document_has_an_example_of_each_body_and_answer() -> None:
    """Each example is one: it has the shape that the operation takes or answers with."""
    assert {each.id for each in ENDPOINTS if each.body or each.lines_in} == set(BODIES)
    for path in document(ENDPOINTS, "")["paths"].values():
        for operation in path.values():
            (endpoint,) = (each for each in ENDPOINTS if each.id == operation["operationId"])
            if endpoint.body:
                (content,) = operation["requestBody"]["content"].values()
                msgspec.convert(content["example"], endpoint.body)
            answer = operation["responses"][str(endpoint.status)]
            for kind, content in answer.get("content", {}).items():
                if kind == JSON:
                    returned = endpoint.takes["return"]
                    wanted = get_args(returned)[0] if endpoint.lines_out else returned
                    msgspec.convert(content["example"], wanted)
                else:
                    assert json.loads(content["example"])


def test_mounted_under_another_path(make_server: MakeServer) -> None:
    """An application of the user's may have it below any path; the document says so."""
    server = make_server()
    outer = Starlette(routes=[Mount("/tools", server.app)])
    transport = httpx2.ASGITransport(outer)
    client = httpx2.AsyncClient(transport=transport, base_url="http://example.org/tools/api/v1")

    def ask(path: str) -> httpx2.Response:
        headers = server.as_(Role.VIEWER)
        return server.portal.call(functools.partial(client.get, path, headers=headers))

    assert [{"url": "/tools/api/v1"}] == ask("/openapi.json").json()["servers"]
    assert {"queues": [], "unreadable": []} == ask("/queues").json()
    server.portal.call(client.aclose)
