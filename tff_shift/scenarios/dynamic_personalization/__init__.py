"""Dynamic personalization: new weights for clients whose streams drift."""
