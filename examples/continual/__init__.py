"""A scenario of one's own, see docs/how_to/own_scenario.md."""
