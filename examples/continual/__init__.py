"""A scenario of one's own, see docs/own_scenario.md."""
