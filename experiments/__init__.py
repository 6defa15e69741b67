"""Programs to start from a checkout, their presets, and tables of papers."""
