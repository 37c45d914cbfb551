"""What becomes of a failure: kept, shrunk, explained, classed and replayed."""
