"""A registry's folder behind HTTP: what becomes of the folder becomes of the answers."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any
from urllib.parse import unquote, urlsplit

from tests.registry.loopback import Asked, Says, Script, Server, no, says


def serve_registry(folder: Path) -> Server:
    """Start a server that answers from the files of a folder, as they are at that moment."""
    return Server(_script(folder))


def _script(folder: Path) -> Script:
    def answer(asked: Asked) -> Says:
        names = [unquote(part) for part in urlsplit(asked.path).path.strip("/").split("/")]
        try:
            found = _find(folder, names)
        except FileNotFoundError:
            found = None
        except (ValueError, LookupError, TypeError, OSError) as error:
            return no(500, 50001, f"a damaged file: {error}")
        return no(404, 40403) if found is None else says(found)

    return answer


def _find(folder: Path, names: list[str]) -> Any:
    match names:
        case ["schemas", "types"]:
            return ["PROTOBUF"]
        case ["schemas", "ids", number]:
            return _schema(folder, int(number))
        case ["schemas", "ids", number, "versions"]:
            every = [_json(file) for file in sorted((folder / "subjects").glob("*/*.json"))]
            mine = [version for version in every if version["id"] == int(number)]
            return [{"subject": v["subject"], "version": v["version"]} for v in mine] or None
        case ["subjects"]:
            return sorted(path.name for path in (folder / "subjects").iterdir())
        case ["subjects", subject, "versions"]:
            return _versions(folder, subject) or None
        case ["subjects", subject, "versions", number]:
            versions = _versions(folder, subject)
            wanted = max(versions, default=0) if number == "latest" else int(number)
            place = _json(folder / "subjects" / subject / f"{wanted}.json")
            return {**place, **_schema(folder, place["id"])}
    return None


def _versions(folder: Path, subject: str) -> list[int]:
    return sorted(int(file.stem) for file in (folder / "subjects" / subject).glob("*.json"))


def _schema(folder: Path, number: int) -> dict[str, Any]:
    text = "\n".join(_json(folder / "ids" / f"{number:08d}.json")["schema"])
    return {"schemaType": "PROTOBUF", "schema": text}


def _json(file: Path) -> Any:
    return json.loads(file.read_text("utf-8"))
