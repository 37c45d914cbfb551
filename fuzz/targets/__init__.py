"""One small adapter per implementation under test, and what adapters share."""
