"""Online adaptation: adapt a deployed model to unlabelled streams."""
