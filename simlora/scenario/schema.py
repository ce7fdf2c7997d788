"""The JSON Schema of a scenario file: editors complete and check keys with it."""

from __future__ import annotations

import inspect
from collections.abc import Sequence
from typing import Any

from pydantic.json_schema import models_json_schema

from simlora.scenario import gpu
from simlora.scenario.base import Config
from simlora.scenario.cluster import ROUTERS, RouterConfig, router_class
from simlora.scenario.engines import ENGINES, engine_config
from simlora.scenario.engines.base import EngineBase
from simlora.scenario.model import MODELS
from simlora.scenario.root import Scenario

TITLE = "simlora scenario"


def json_schema() -> dict[str, Any]:
    """JSON Schema (draft 2020-12) of the YAML that load_scenario reads.

    Rules between keys are not in it; load_scenario checks them.
    """
    schema = Scenario.model_json_schema(mode="validation")
    schema["properties"]["engine"]["anyOf"] = _engines(schema["$defs"])
    schema["$defs"]["ClusterConfig"]["properties"]["router"]["anyOf"] = _routers(schema["$defs"])
    for definition in schema["$defs"].values():
        _allow_null(definition)
    _allow_null(schema)
    properties, definitions = schema["properties"], schema["$defs"]
    properties["model"]["examples"] = list(MODELS)
    properties["gpu"] = {
        "anyOf": [
            {"type": "string", "examples": list(gpu.GPUS)},
            {"$ref": "#/$defs/GpuConfig"},
            {"type": "null"},
        ],
        "description": properties["gpu"]["description"],
        "default": properties["gpu"]["default"],
    }
    definitions["GpuConfig"]["properties"]["name"]["examples"] = list(gpu.GPUS)
    ranks = definitions["AdaptersConfig"]["properties"]["ranks"]
    ranks["anyOf"] = [
        {"type": "integer", "minimum": 1, "maximum": 512},
        {
            "type": "object",
            "patternProperties": {"^[0-9]+$": {"type": "number", "minimum": 0, "maximum": 1}},
            "additionalProperties": False,
        },
        {"type": "null"},
    ]
    for key in ("type", "additionalProperties", "propertyNames"):
        ranks.pop(key, None)
    return {"$schema": "https://json-schema.org/draft/2020-12/schema", "title": TITLE, **_plain(schema)}


def _engines(definitions: dict[str, Any]) -> list[dict[str, str]]:
    del definitions[EngineBase.__name__]
    return _references(definitions, [engine_config(kind) for kind in ENGINES])


def _routers(definitions: dict[str, Any]) -> list[dict[str, str]]:
    """Routers with the same options share a definition, in which each is described."""
    del definitions[RouterConfig.__name__]
    kinds: dict[type[RouterConfig], list[str]] = {}
    for name in ROUTERS:
        kinds.setdefault(router_class(name).Options, []).append(name)
    references = _references(definitions, list(kinds))
    for options, names in kinds.items():
        definition = definitions[options.__name__]
        helps = [f"{name}: {_first_paragraph(router_class(name))}" for name in names]
        definition["properties"]["kind"] |= {"enum": names, "description": " ".join(helps)}
        if RouterConfig().kind not in names:
            definition["required"] = ["kind"]
            del definition["properties"]["kind"]["default"]
    return references


def _references(definitions: dict[str, Any], models: Sequence[type[Config]]) -> list[dict[str, str]]:
    """References to the models of a table, which are added to the definitions."""
    _, joined = models_json_schema([(model, "validation") for model in models])
    definitions |= joined["$defs"]
    return [{"$ref": f"#/$defs/{model.__name__}"} for model in models]


def _first_paragraph(described: type) -> str:
    text = inspect.getdoc(described) or ""
    return " ".join(text.partition("\n\n")[0].split())


def _allow_null(definition: dict[str, Any]) -> None:
    """null means "not given", so every optional key takes it."""
    required = definition.get("required", [])
    for name, value in definition.get("properties", {}).items():
        if name in required or {"type": "null"} in value.get("anyOf", []):
            continue
        outer = {key: value.pop(key) for key in ("description", "default", "title") if key in value}
        variants = value.pop("anyOf", None) or [dict(value)]
        value.clear()
        value.update({"anyOf": [*variants, {"type": "null"}], **outer})


def _plain(node: Any) -> Any:
    """pydantic's titles repeat the key names; its discriminators are OpenAPI's, not JSON Schema's."""
    if isinstance(node, list):
        return [_plain(item) for item in node]
    if not isinstance(node, dict):
        return node
    return {key: _plain(value) for key, value in node.items() if key != "discriminator" and not _is_title(key, value)}


def _is_title(key: str, value: Any) -> bool:
    return key == "title" and isinstance(value, str)
