"""The page of the API: every endpoint with its fields, from the schema, without scripts."""

from __future__ import annotations

import html
import json
from typing import Any

PAGE = """<!doctype html><html lang="en"><meta charset="utf-8"><meta name="viewport" content="width=device-width">
<title>allyouneed: API</title><style>:root{{color-scheme:light dark}}body{{font:16px/1.5 system-ui,sans-serif;
max-width:60rem;margin:2rem auto;padding:0 1rem}}code{{font-family:ui-monospace,monospace}}h2{{margin-top:2.5rem}}
h3{{margin:1.5rem 0 .2rem}}table{{border-collapse:collapse;width:100%}}td{{border-top:1px solid #8884;padding:.2rem .8rem
.2rem 0;vertical-align:top}}</style><h1>API</h1><p>The schema for programs: <a href="openapi.json">openapi.json</a>.
Requests are JSON; errors are <code>{{"error": {{"message": …}}}}</code>.</p>{body}</html>"""


def reference(schema: dict[str, Any]) -> str:
    parts, heading = [], ""
    for path, methods in schema["paths"].items():
        for method, one in methods.items():
            if (tag := one.get("tags", ["page"])[0]) != heading:
                heading = tag
                parts.append(f"<h2>{html.escape(tag)}</h2>")
            parts.append(f"<h3><code>{method.upper()} {html.escape(path)}</code></h3>")
            parts.append(f"<p>{html.escape(one.get('description', ''))}</p>")
            body = one.get("requestBody", {}).get("content", {}).get("application/json", {}).get("schema", {})
            if name := body.get("$ref", "").rpartition("/")[2]:
                fields = schema["components"]["schemas"][name]
                rows = [_row(key, field, fields.get("required", [])) for key, field in fields["properties"].items()]
                parts.append(f"<table>{''.join(rows)}</table>")
    return PAGE.format(body="".join(parts))


def _row(name: str, field: dict[str, Any], required: list[str]) -> str:
    about = "needed" if name in required else f"default {json.dumps(field.get('default'))}"
    return f"<tr><td><code>{name}</code><td>{_kind(field)}<td>{about}<td>{html.escape(field.get('description', ''))}"


def _kind(field: dict[str, Any]) -> str:
    if "anyOf" in field:
        kinds = [_kind(one) for one in field["anyOf"]]
        return " or ".join(dict.fromkeys(kind for kind in kinds if kind != "null"))
    if "enum" in field or "const" in field:
        return ", ".join(map(str, field.get("enum", [field.get("const")])))
    if field.get("type") == "array":
        return f"list of {_kind(field.get('items', {}))}"
    bounds = [f"{sign} {field[key]:g}" for key, sign in (("minimum", "≥"), ("maximum", "≤")) if key in field]
    return " ".join([str(field.get("type") or field.get("$ref", "any").rpartition("/")[2]), *bounds])
