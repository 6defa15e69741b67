"""A scenario of a user's own: domains come one after the other."""
