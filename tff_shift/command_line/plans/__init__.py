"""One plan for each scenario: its flags, and what they ask for."""
