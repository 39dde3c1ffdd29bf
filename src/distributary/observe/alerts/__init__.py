"""Alerts: what is worth telling people, when it is over, and how it reaches them.

`attach_alerts` (`watch.py`) is the door. `rules.py` decides and touches nothing; `limit.py` says
how much a target is told; `courier.py` delivers; `targets/` speaks each target's language.
"""

from distributary.observe.alerts.watch import Watch, attach_alerts

__all__ = ["Watch", "attach_alerts"]
