"""Which ports: those in use, those asked for, those of before, the usual ones, or free ones."""

from __future__ import annotations

from collections.abc import Mapping

from distributary.dev.ports import Ports, free_port, is_free
from distributary.dev.process import Running
from distributary.errors import ConfigError

_MAIN = ("kafka", "registry")
_SECURED = ("sasl_plaintext", "sasl_ssl", "ssl", "https")

Numbers = Mapping[str, int]


def choose_ports(
    *,
    asked: Numbers,
    live: Mapping[str, Running],
    before: Ports | None,
    usual: Numbers,
    secured: bool,
) -> Ports:
    """The ports of a start; ConfigError where a service runs at another one than was asked for."""
    old = before or Ports(0, 0, 0)
    taken: set[int] = set()

    def choose(*wishes: int) -> int:
        port = next(filter(None, wishes), 0) or free_port(but=taken)
        taken.add(port)
        return port

    for name, service in live.items():
        _require_same(name, asked.get(name, 0), service)
    main = {
        name: choose(
            live[name].port if name in live else 0,
            asked.get(name, 0),
            getattr(old, name),
            usual.get(name, 0),
        )
        for name in _MAIN
    }
    # nobody but the broker itself needs to find this one again
    stays = "kafka" in live or (old.controller and is_free(old.controller))
    controller = choose(old.controller if stays else 0)
    if not (secured or old.ssl):
        return Ports(controller=controller, **main)
    others = {name: choose(getattr(old, name)) for name in _SECURED}
    return Ports(controller=controller, **main, **others)


def _require_same(name: str, asked: int, service: Running) -> None:
    if asked and asked != service.port:
        raise ConfigError(
            f"{name} runs already, at port {service.port}",
            where=f"--{name}-port {asked}",
            evidence=f"process {service.pid}",
            next_step="distributary dev down, then distributary dev up with the other port",
        )
