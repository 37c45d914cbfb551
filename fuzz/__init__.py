"""The tester: histories are generated, walked beside a target, judged, shrunk and reported."""
