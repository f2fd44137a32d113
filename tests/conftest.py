"""For every test: how many examples properties try, chosen with --hypothesis-profile."""

from __future__ import annotations

from hypothesis import settings

# No deadlines: a busy machine is not a failure, and pytest's own time limit ends what hangs.
settings.register_profile("dev", max_examples=50, deadline=None)
# Derandomized: a change is not blamed for an example that another change would have met as well;
# the nightly run looks for new ones.
settings.register_profile("ci", max_examples=500, deadline=None, derandomize=True)
settings.register_profile("nightly", max_examples=20_000, deadline=None)
settings.load_profile("dev")
