"""For all tests: the helper modules beside this file can be imported, and hypothesis judges no machine's speed."""

from __future__ import annotations

import hypothesis

# Deadlines and "too slow" are about the machine, which may be shared with anything.
hypothesis.settings.register_profile("patient", deadline=None, suppress_health_check=[hypothesis.HealthCheck.too_slow])
hypothesis.settings.load_profile("patient")
