"""The page at `/`: files of the package, the same for everybody, so no key is asked for them."""

from pathlib import Path

from starlette.responses import Response
from starlette.routing import BaseRoute, Match, Mount
from starlette.staticfiles import StaticFiles
from starlette.types import Scope

_FOLDER = Path(__file__).parent / "static"


class PageFiles(StaticFiles):
    """Files that browsers ask about each time: a newer version is seen at once."""

    async def get_response(self, path: str, scope: Scope) -> Response:
        """Return a file, or that it has not changed."""
        response = await super().get_response(path, scope)
        response.headers["cache-control"] = "no-cache"
        return response


class PageMount(Mount):
    """Serves the paths of the page only; to all others the application answers as without it."""

    def __init__(self) -> None:
        """Serve what the folder holds now."""
        super().__init__("/", PageFiles(directory=_FOLDER, html=True), name="page")
        self._paths = paths()

    def matches(self, scope: Scope) -> tuple[Match, Scope]:
        """Return whether a path is the page's."""
        return super().matches(scope) if scope["path"] in self._paths else (Match.NONE, {})


def mounts() -> list[BaseRoute]:
    """Return what serves the page, to be looked at after all other routes."""
    if not _FOLDER.is_dir():
        return []
    return [PageMount()]


def paths() -> frozenset[str]:
    """Return the paths of the page and its files."""
    found = (path.relative_to(_FOLDER).as_posix() for path in _FOLDER.rglob("*") if path.is_file())
    return frozenset({"/", *(f"/{path}" for path in found)})
