"""The ways in which a model could be placed on a machine, whatever room there is.

devices = auto            one card, or several if no card alone will do; the CPU where there is
                          no card, or where the model is too large for all of them
devices = one             that one
devices = several         the layers shared out, by `split` or by the space there is
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass

from corral.errors import DeviceUnavailable
from corral.router.entry import AUTO, HOST, Footprint, Preset
from corral.router.placing import Machine, Need, Policy, Site, Wanted
from corral.router.splitting import Part, Splitter

CPU = "cpu"
Spaces = Mapping[str, int | None]


@dataclass(frozen=True, slots=True)
class Ways:
    """Some devices a model may be placed on, alike enough for the router to choose among them."""

    wanted: Wanted
    policy: Policy
    sites: tuple[Site, ...]
    must_use_all: bool = False

    def whole(self) -> tuple[Need, ...]:
        """Return what the model needs on each device if it is there as a whole."""
        if self.must_use_all and len(self.sites) > 1:
            return ()
        return tuple(map(self._whole, self.sites))

    def splits(self, spaces: Spaces, *orders: Spaces) -> tuple[Need, ...]:
        """Return what it needs split over as few of the devices as have space for it.

        `spaces` are what it may take of each memory. Devices are taken in an order, those of which
        it says the most first; each order gives a way of its own.
        """
        if len(self.sites) < 2:
            return ()
        if self.must_use_all:
            need = self._split(self.sites, spaces)
            return () if need is None else (need,)
        ways = (self._fewest(spaces, order) for order in orders)
        found = {need.sites: need for need in ways if need is not None}
        return tuple(found.values())

    def _fewest(self, spaces: Spaces, order: Spaces) -> Need | None:
        """Return the split over the first of the devices that together have space, in an order."""
        known = [site for site in self.sites if spaces.get(site.memory) is not None]
        own = [site for site in known if site.memory != HOST]
        own.sort(key=lambda site: -(order.get(site.memory) or 0))
        for count in range(2, len(own) + 1):
            sites = [site for site in self.sites if site in own[:count]]
            if (need := self._split(sites, spaces)) is not None:
                return need
        return None

    def _whole(self, site: Site) -> Need:
        footprint = self._footprint(site)
        sizes: dict[str, int] = {HOST: self.policy.process_bytes}
        _add(sizes, site.memory, footprint.own_bytes + site.context_bytes)
        _add(sizes, HOST, footprint.host_bytes)
        return self._at_least_observed(Need((site.name,), sizes))

    def _split(self, sites: Sequence[Site], spaces: Spaces) -> Need | None:
        """Return what it needs split over all of these; None if it has no space there."""
        footprints = [self._footprint(site) for site in sites]
        if len(sites) > len(footprints[0].layers.weights):
            return None
        shares = self.wanted.preset.split
        if shares is not None:
            parts = Splitter(footprints).by_shares(shares)
        else:
            beside = self.policy.process_bytes + sum(one.host_bytes for one in footprints)
            free = [_space(site, spaces, beside) for site in sites]
            least = min(footprint.own_bytes for footprint in footprints)
            parts = Splitter(footprints).by_space(free) if least <= sum(free) else None
        return None if parts is None else self._of_parts(sites, footprints, parts)

    def _of_parts(
        self, sites: Sequence[Site], footprints: Sequence[Footprint], parts: Sequence[Part]
    ) -> Need:
        sizes: dict[str, int] = {HOST: self.policy.process_bytes}
        for site, footprint, part in zip(sites, footprints, parts, strict=True):
            _add(sizes, site.memory, part.own_bytes + site.context_bytes)
            _add(sizes, HOST, footprint.host_bytes)
        names = tuple(site.name for site in sites)
        weights = tuple(float(part.weights_bytes) for part in parts)
        return self._at_least_observed(Need(names, sizes, weights, is_exact=False))

    def _footprint(self, site: Site) -> Footprint:
        for footprint in self.wanted.footprints:
            if footprint.kind == site.kind:
                return footprint
        raise DeviceUnavailable(f"{self.wanted.name} was not planned for {site.name}")

    def _at_least_observed(self, need: Need) -> Need:
        seen = self.wanted.observed.get(need.sites)
        if not seen:
            return need
        sizes = {m: max(size, seen.get(m, 0)) for m, size in need.bytes.items()}
        return Need(need.sites, sizes, need.split, need.is_exact)


def ways(wanted: Wanted, machine: Machine, policy: Policy) -> tuple[Ways, ...]:
    """Return where a model may be placed; a later group counts only if it fits none before.

    Raises:
        DeviceUnavailable: none of the devices that it is for is here.
    """
    preset = wanted.preset
    if preset.devices != (AUTO,):
        sites = tuple(_named(name, machine, preset) for name in preset.devices)
        _require_distinct(sites, preset)
        return (Ways(wanted, policy, sites, must_use_all=True),)
    cards = tuple(site for site in machine.sites if site.kind != CPU)
    others = tuple(site for site in machine.sites if site.kind == CPU)
    found = tuple(Ways(wanted, policy, sites) for sites in (cards, others) if sites)
    if not found:
        raise DeviceUnavailable(f"{preset.name} is for any device, and there is none here")
    return found


def _named(name: str, machine: Machine, preset: Preset) -> Site:
    matching = [site for site in machine.sites if _is_called(site, name)]
    if len(matching) != 1:
        here = ", ".join(site.name for site in machine.sites) or "none"
        problem = "no device" if not matching else "more than one device"
        raise DeviceUnavailable(
            f"{preset.name} is for {name}, and {problem} here is called so: there are {here}"
        )
    return matching[0]


def _is_called(site: Site, name: str) -> bool:
    if site.name == name:
        return True
    is_uuid = name.startswith(("GPU-", "MIG-"))
    return bool(is_uuid and site.uuid and site.uuid.lower().startswith(name.lower()))


def _require_distinct(sites: Sequence[Site], preset: Preset) -> None:
    for place, site in enumerate(sites):
        for other in sites[:place]:
            if site.memory == other.memory:
                raise DeviceUnavailable(
                    f"{preset.name} is for {other.name} and {site.name}, which have one memory: "
                    "name one of them"
                )


def _space(site: Site, spaces: Spaces, beside: int) -> int:
    known = spaces.get(site.memory)
    taken = site.context_bytes + (beside if site.memory == HOST else 0)
    return (known or 0) - taken


def _add(sizes: dict[str, int], memory: str, size: int) -> None:
    sizes[memory] = sizes.get(memory, 0) + size
