"""Results for readers: metrics, figures, trackers, pages."""
