"""Plans, one per scenario: its flags, and the checked comparison."""
