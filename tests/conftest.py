"""What all tests share. Fixtures of one room stand in that room's own conftest."""
