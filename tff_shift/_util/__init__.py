"""What all folders of the package share."""
