"""The OpenAPI 3.1 document of the API, made from the declarations of its endpoints."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any, Final, get_args

import msgspec

from queue_over_sql import __version__
from queue_over_sql.values.json_lines import to_json
from queue_over_sql.web.access import CSRF_HEADER
from queue_over_sql.web.api import shapes
from queue_over_sql.web.api.endpoints import IDEMPOTENCY, JSON, Endpoint
from queue_over_sql.web.api.examples import BODIES, of_answer
from queue_over_sql.web.idempotency import LONGEST_KEY
from queue_over_sql.web.problems import PROBLEM
from queue_over_sql.web.security_headers import NDJSON

_REF: Final = "#/components/schemas/{name}"
_PROBLEMS: Final = {
    400: "The body is not JSON.",
    401: "The token is missing or wrong.",
    403: "The caller's role, the database login or a read-only server does not allow it.",
    404: "There is no such queue, message, schedule, topic or token.",
    408: "The body did not arrive in time.",
    409: "It conflicts with the present state: the key is taken, or a claim is lost.",
    413: "The body or the payload is too large.",
    415: "The body has another media type.",
    422: "The request is not valid.",
    429: "There were too many wrong tokens from this address.",
    503: "The database cannot be reached.",
}
_NAME: Final = {"type": "string", "minLength": 1, "maxLength": 200}
_QUEUE_NAME: Final = {"type": "string", "pattern": "^[a-z][a-z0-9_]{0,39}$"}
_IN_PATH: Final = {
    "queue": _QUEUE_NAME,
    "topic": _QUEUE_NAME,
    "id": {"type": "string", "pattern": "^[0-9]{1,18}$"},
}
_ALWAYS: Final = (401, 403, 422, 429, 503)


def document(endpoints: Sequence[Endpoint], server: str) -> dict[str, Any]:
    """Describe endpoints as an OpenAPI document.

    Args:
        endpoints: all of them.
        server: the path of the API.
    """
    types: list[Any] = [shapes.Problem]
    for endpoint in endpoints:
        types += [each for each in (endpoint.body, _answer(endpoint)) if each is not None]
    schemas, components = msgspec.json.schema_components(types, ref_template=_REF)
    components = {name: _for_generators(schema) for name, schema in components.items()}
    refs = dict(zip(map(repr, types), map(_for_generators, schemas), strict=True))
    paths: dict[str, Any] = {}
    for endpoint in endpoints:
        path = endpoint.path.replace(":path}", "}")
        paths.setdefault(path, {})[endpoint.method.lower()] = _described(endpoint, refs)
    return {
        "openapi": "3.1.0",
        "info": {
            "title": "queue_over_sql",
            "version": __version__,
            "description": "Message queues in a SQL database, over HTTP. Ids are text. Durations "
            "are seconds, times are ISO 8601. Errors are problem documents (RFC 9457).",
        },
        "servers": [{"url": server or "/"}],
        "security": [{"token": []}, {"session": []}],
        "tags": [{"name": tag} for tag in dict.fromkeys(each.tag for each in endpoints)],
        "paths": paths,
        "components": {
            "schemas": components,
            "responses": {str(status): _problem(text) for status, text in _PROBLEMS.items()},
            "securitySchemes": {
                "token": {"type": "http", "scheme": "bearer"},
                "session": {
                    "type": "apiKey",
                    "in": "cookie",
                    "name": "queue_over_sql_session",
                    "description": f"Requests that change something must also send {CSRF_HEADER}.",
                },
            },
        },
    }


def _described(endpoint: Endpoint, refs: Mapping[str, Any]) -> dict[str, Any]:
    summary, _, more = endpoint.text.partition("\n\n")
    described: dict[str, Any] = {
        "operationId": endpoint.id,
        "tags": [endpoint.tag],
        "summary": summary.rstrip("."),
        "description": f"{more}\n\n{_needs(endpoint)}".strip(),
        "responses": _responses(endpoint, refs),
    }
    if parameters := [*_path(endpoint), *_query(endpoint), *_headers(endpoint)]:
        described["parameters"] = parameters
    if endpoint.body is not None:
        described["requestBody"] = {
            "required": not endpoint.body_may_be_left_out,
            "content": {JSON: _with(BODIES[endpoint.id], refs[repr(endpoint.body)])},
        }
    elif endpoint.lines_in:
        described["requestBody"] = {
            "required": True,
            "content": {NDJSON: _with(BODIES[endpoint.id], {"type": "string"})},
        }
    return described


def _needs(endpoint: Endpoint) -> str:
    return "Needs any role." if endpoint.role is None else f"Needs the role {endpoint.role}."


def _with(example: Any, schema: dict[str, Any]) -> dict[str, Any]:
    return {"schema": schema, "example": example}


def _responses(endpoint: Endpoint, refs: Mapping[str, Any]) -> dict[str, Any]:
    answer = _answer(endpoint)
    done: dict[str, Any] = {"description": "Done."}
    if answer is not None:
        done["content"] = {JSON: _with(of_answer(answer), refs[repr(answer)])}
    if endpoint.lines_out:
        (line,) = next(iter(of_answer(answer).values()))
        done["content"][NDJSON] = _with(f"{to_json(line)}\n", {"type": "string"})
    found = {str(endpoint.status): done}
    if endpoint.id == "publish":
        found["200"] = done
    statuses = {*_ALWAYS, *endpoint.problems}
    if endpoint.body is not None:
        statuses |= {400, 408, 413, 415}
    if endpoint.lines_in:
        statuses |= {400, 415}
    for status in sorted(statuses):
        found[str(status)] = {"$ref": f"#/components/responses/{status}"}
    return found


def _answer(endpoint: Endpoint) -> Any:
    answer = endpoint.takes.get("return")
    if endpoint.lines_out:
        answer = get_args(answer)[0]
    return None if answer is type(None) else answer


def _path(endpoint: Endpoint) -> list[dict[str, Any]]:
    return [
        {"name": name, "in": "path", "required": True, "schema": _IN_PATH.get(name, _NAME)}
        for name in endpoint.in_path
    ]


def _query(endpoint: Endpoint) -> list[dict[str, Any]]:
    if endpoint.query is None:
        return []
    (_,), components = msgspec.json.schema_components([endpoint.query])
    schema = components[endpoint.query.__name__]
    required = schema.get("required", ())
    found = []
    for name, inner in schema["properties"].items():
        inner = _without_null(inner)  # noqa: PLW2901 - a query has none
        found.append({"name": name, "in": "query", "required": name in required, "schema": inner})
    return found


def _for_generators(schema: Any) -> Any:
    """The schema with what generators of clients need.

    They make a field with a default a required one, and an object without properties an empty one.
    """
    if isinstance(schema, list):
        return [_for_generators(each) for each in schema]
    if not isinstance(schema, dict):
        return schema
    made = {
        name: {field: _for_generators(inner) for field, inner in value.items()}
        if name == "properties"
        else value
        if name in {"enum", "required", "default"}
        else _for_generators(value)
        for name, value in schema.items()
    }
    if made.get("type") == "object" and not {"properties", "additionalProperties"} & made.keys():
        made["additionalProperties"] = True
    if "type" not in made and all(isinstance(each, str) for each in made.get("enum", [None])):
        made["type"] = "string"
    default = made.pop("default", None)
    if default not in (None, {}) and default is not False:
        about = str(made.get("description", "")).removesuffix(".")
        text = f"{about}; default: {default}." if about else f"Default: {default}."
        made["description"] = text
    return made


def _without_null(schema: dict[str, Any]) -> dict[str, Any]:
    schema = {name: value for name, value in schema.items() if (name, value) != ("default", None)}
    if "anyOf" in schema:
        rest = [each for each in schema["anyOf"] if each != {"type": "null"}]
        if len(rest) == 1:
            return {**{n: v for n, v in schema.items() if n != "anyOf"}, **rest[0]}
    if isinstance(schema.get("enum"), list):
        schema["enum"] = [each for each in schema["enum"] if each is not None]
    return schema


def _headers(endpoint: Endpoint) -> list[dict[str, Any]]:
    if not endpoint.idempotent:
        return []
    return [
        {
            "name": IDEMPOTENCY,
            "in": "header",
            "required": False,
            "schema": {"type": "string", "minLength": 1, "maxLength": LONGEST_KEY},
        }
    ]


def _problem(text: str) -> dict[str, Any]:
    return {
        "description": text,
        "content": {PROBLEM: {"schema": {"$ref": _REF.format(name="Problem")}}},
    }
