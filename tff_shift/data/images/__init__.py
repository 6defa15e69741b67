"""Image transforms and corruptions."""
