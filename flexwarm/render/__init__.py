"""Results as text: for people with rich; never a decision."""
