"""What all routes share: the models, the settings, who waits, and whether the server stops."""

import asyncio
from collections.abc import Callable

from starlette.requests import Request

from corral.api.callers import Callers
from corral.api.errors import refused
from corral.api.exchange import Exchange
from corral.api.fleet_meters import FleetMeters
from corral.api.mailroom import Inbox, Mailroom
from corral.api.meters import Meters
from corral.api.model import Model, RoutedModel, SoleModel, not_ready
from corral.api.readings import Readings
from corral.api.settings import ApiSettings
from corral.contract.fleet import Fleet
from corral.contract.service import Service
from corral.contract.worker import WorkerState, WorkerStatus
from corral.errors import Closed, ModelNotFound


class Serving:
    """Models behind HTTP; made in the event loop that it belongs to."""

    def __init__(self, settings: ApiSettings, readings: Readings) -> None:
        """Serve no model yet: `ServingOne` and `ServingMany` do."""
        self.settings = settings
        self.readings = readings
        self.callers = Callers()
        self.stopping = asyncio.Event()
        """Set when no new requests are taken."""
        self._exchanges: dict[Exchange, None] = {}
        self._mailroom = Mailroom()

    def enter(self, exchange: Exchange) -> Inbox:
        """Know an exchange until it leaves, and return an inbox for its events."""
        self._exchanges[exchange] = None
        capacity = self.settings.limits.queued_events
        return Inbox(self._mailroom, capacity=capacity, on_overfull=exchange.end_slowly_read)

    def leave(self, exchange: Exchange) -> None:
        """Forget an exchange that ended."""
        self._exchanges.pop(exchange, None)

    def require_open(self) -> None:
        """Accept a request only while new ones are taken; raises Refused: 503."""
        if self.stopping.is_set():
            raise not_ready(WorkerState.CLOSED)

    def find(self, name: str | None) -> Model:
        """Return the model that a request names, or means where it names none; raises Refused."""
        raise NotImplementedError

    def stop(self) -> None:
        """Take no more requests; those that run go on."""
        self.stopping.set()

    def end_all(self) -> None:
        """End what still runs, each with an error that says why."""
        for exchange in list(self._exchanges):
            exchange.end(Closed("the server is shutting down"))

    def close(self) -> None:
        """End everything and let the threads go."""
        self.stop()
        self.end_all()
        self.callers.close()


class ServingOne(Serving):
    """One model, from the server's start to its end."""

    def __init__(
        self,
        service: Service,
        settings: ApiSettings,
        *,
        status: Callable[[], WorkerStatus],
        readings: Readings,
    ) -> None:
        """Serve a service; `status` tells of its worker and returns at once."""
        super().__init__(settings, readings)
        self.status = status
        self.meters = Meters(settings.model)
        self.model = SoleModel(service, settings, self.callers, status=status, meters=self.meters)

    def require_open(self) -> None:
        """Refuse with 503 while the model is not loaded, too."""
        super().require_open()
        self.model.require_ready()

    def find(self, name: str | None) -> SoleModel:
        """Accept the name of the model, an alias, or none; 404 for any other."""
        settings = self.settings
        if name is None or name in (settings.model, *settings.aliases) or "*" in settings.aliases:
            return self.model
        raise _unknown(name)


class ServingMany(Serving):
    """Models of a fleet, each loaded when it is wanted."""

    def __init__(self, fleet: Fleet, settings: ApiSettings, *, readings: Readings) -> None:
        """Serve a fleet."""
        super().__init__(settings, readings)
        self.fleet = fleet
        self.meters = FleetMeters()
        self._models: dict[str, RoutedModel] = {}

    def find(self, name: str | None) -> RoutedModel:
        """Return the model of a name or alias; without a name, the only one there is."""
        own = self._only() if name is None else self._own_name(name)
        if own not in self._models:
            meters = self.meters.of(own)
            model = RoutedModel(self.fleet, own, self.settings, self.callers, meters=meters)
            self._models[own] = model
        return self._models[own]

    def _own_name(self, name: str) -> str:
        try:
            return self.fleet.find(name)
        except ModelNotFound:
            raise _unknown(name) from None

    def _only(self) -> str:
        names = self.fleet.names()
        if len(names) == 1:
            return names[0]
        message = f"expected the name of one of {len(names)} models; /v1/models lists them"
        raise refused(400, message, code="model_missing", param="model")


def _unknown(name: str) -> Exception:
    message = f"there is no model {name[:60]!r} here; /v1/models lists what is"
    return refused(404, message, code="model_not_found", param="model")


def serving_of(request: Request) -> Serving:
    """Return what the application of a request serves."""
    serving: Serving = request.app.state.serving
    return serving


def one_of(request: Request) -> ServingOne:
    """Return what the application of a request serves, where that is one model."""
    serving = serving_of(request)
    assert isinstance(serving, ServingOne), "these routes are made for one model"
    return serving


def many_of(request: Request) -> ServingMany:
    """Return what the application of a request serves, where that is a fleet."""
    serving = serving_of(request)
    assert isinstance(serving, ServingMany), "these routes are made for a fleet"
    return serving


def namespace_of(request: Request) -> str:
    """Return the namespace of a request's key; keys and values are shared within it only."""
    return str(request.scope.get("corral.namespace", ""))
